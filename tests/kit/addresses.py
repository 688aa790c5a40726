"""Sixty ways to write an address that must not be reached, as URLs; and names that lead to one."""

from __future__ import annotations

# {port}: where somebody listens, on every address of the loopback.
URLS = [
    "http://127.0.0.1:{port}/", "https://127.0.0.1:{port}/", "http://127.0.0.2:{port}/", "http://127.255.255.254:{port}/",
    "http://127.1:{port}/", "http://127.0.1:{port}/", "http://0:{port}/", "http://0.0.0.0:{port}/", "http://0x7f.1:{port}/",
    "http://0x7f000001:{port}/", "http://0X7F.0.0.1:{port}/", "http://2130706433:{port}/", "http://017700000001:{port}/",
    "http://0177.0.0.1:{port}/", "http://0177.0.0.01:{port}/", "http://127.0.0.1.:{port}/", "http://127.0.0.1%00:{port}/",
    "http://127.0.0.1%2f:{port}/", "http://127.0.0.1#@example.com:{port}/", "http://example.com@127.0.0.1:{port}/",
    "http://a:b@127.0.0.1:{port}/", "http://127.0.0.1\\@example.com:{port}/", "http://①②⑦.⓪.⓪.①:{port}/",
    "http://127。0。0。1:{port}/", "http://１２７.０.０.１:{port}/", "http://١٢٧.0.0.1:{port}/", "http://localhost:{port}/",
    "http://LOCALHOST:{port}/", "http://localhost.:{port}/", "http://loca\u00adlhost:{port}/", "http://[::1]:{port}/",
    "http://[0:0:0:0:0:0:0:1]:{port}/", "http://[::]:{port}/", "http://[::127.0.0.1]:{port}/", "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/", "http://[::ffff:0:127.0.0.1]:{port}/", "http://[64:ff9b::127.0.0.1]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/", "http://[64:ff9b:1::7f00:1]:{port}/", "http://[2002:7f00:1::]:{port}/",
    "http://[2001:0:7f00:1::]:{port}/", "http://[fe80::1%25lo]:{port}/", "http://[fe80::1%lo]:{port}/", "http://[::1%25lo]:{port}/",
    "http://[fec0::1]:{port}/", "http://[fd00:ec2::254]:{port}/", "http://[ff02::1]:{port}/", "http://[100::1]:{port}/",
    "http://169.254.169.254/latest/meta-data/", "http://100.100.100.200/", "http://192.0.0.192/", "http://168.63.129.16/",
    "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.0.1/", "http://198.18.0.1/", "http://224.0.0.1/",
    "http://255.255.255.255/", "http://240.0.0.1/", "gopher://127.0.0.1:{port}/_x", "file://127.0.0.1/etc/passwd",
    "http:127.0.0.1:{port}/", "http:///127.0.0.1:{port}/", "//127.0.0.1:{port}/", "http://127.0.0.1:{port}:80/",
    " http://127.0.0.1:{port}/", "http://127.0.0.1\r\nHost: a:{port}/", "HTTP://127.0.0.1:{port}/",
]  # fmt: skip
# Answers of a name server for a name that looks harmless: one of them is not public.
ANSWERS = [
    ["127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["127.0.0.1", "1.1.1.1"], ["2606:4700::1", "::1"],
    ["0.0.0.0"], ["64:ff9b::7f00:1"], ["2002:7f00:1::"], ["fe80::1%lo"], ["10.0.0.1"], ["169.254.169.254"], ["fec0::1"],
    ["127.0.0.2", "127.0.0.3"], [], ["not an address"], ["127.1"], ["017700000001"],
]  # fmt: skip
