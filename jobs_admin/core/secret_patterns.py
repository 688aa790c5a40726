"""Secrets of a known form, whatever their name: tokens by prefix, cards, keys, passwords in URLs.

Every pattern is linear in the length of the text: its quantifiers are bounded, and it only starts where the previous
character does not belong to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

PLACEHOLDER = "[redacted]"

# Prefixes of tokens that start no ordinary word; and prefixes that start names of settings too (`npm_config_registry`),
# after which a digit is required.
_PREFIXES = (
    "sk_live_", "sk_test_", "rk_live_", "rk_test_", "pk_live_", "pk_test_", "whsec_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
    "github_pat_", "glpat-", "glrt-", "gldt-", "glptt-", "glcbt-", "glsoat-", "glft-", "glimt-", "glagent-", "gloas-",
    "xoxa-", "xoxb-", "xoxe-", "xoxe.", "xoxp-", "xoxr-", "xoxs-", "xapp-", "SG.", "AIza", "ya29.", "GOCSPX-", "gsk_",
    "dop_v1_", "doo_v1_", "dor_v1_", "shpat_", "shpca_", "shppa_", "shpss_", "sq0atp-", "sq0csp-", "lin_api_", "lin_oauth_",
    "rdv_", "hvs.", "hvb.", "hvr.", "glsa_", "glc_", "sntrys_", "sntryu_", "sbp_", "nfp_", "pscale_tkn_", "pscale_pw_",
    "pscale_oauth_", "dckr_pat_", "dckr_oat_", "xkeysib-", "xsmtpsib-", "HRKU-", "NRAK-", "NRJS-", "NRII-", "ATATT3",
    "ATCTT3", "ATBB", "tskey-", "AGE-SECRET-KEY-1", "PMAK-", "figd_", "dp.pt.", "dp.st.", "dp.ct.", "dp.sa.", "dp.scim.",
    "dp.audit.", "rubygems_", "sk.eyJ", "api_sk_", "wh_sk_", "ntn_", "pplx-", "xai-", "CFPAT-", "FLWSECK", "rzp_live_",
    "CfDJ8", "squ_", "sqp_", "sqa_", "pcsk_", "shippo_live_", "shippo_test_", "vercel_blob_rw_", "fio-u-", "nvapi-", "tvly-", "ops_eyJ",
    "bkua_", "sb_secret_", "lin_wh_", "xoxd-", "ATTA", "EZAK", "EZTK", "CLOJARS_", "dG9rO", "AQVN", "APA91b", "xprv", "rpa_", "sgp_",
    "AKCp",
)  # fmt: skip
_PREFIXES_OF_MORE = ("sk-", "npm_", "pypi-", "hf_", "r8_", "secret_")
_NO_TOKENS = ("sk-ssh-", "sk-ecdsa-")  # kinds of keys
_WORD = re.compile(r"[^\W\d][\w-]*")
_LONGEST_WORD = 100  # characters
_MOST_WORDS = 2_000
_ONE_WORD = 2_000  # characters of a text that may be a single word
_RUN = re.compile(r"[\w.-]{18,}")
_LONG_RUN = b"x" * 18
# Classes of ASCII characters: of such a run, of a card's number.
_OF_RUNS = bytes(ord("x" if chr(code).isalnum() or chr(code) in "_.-" else " ") for code in range(128)) + b" " * 128
_OF_CARDS = bytes(ord("0" if chr(code).isdigit() else " ") for code in range(128)) + b" " * 128
_CARD_LONG = b"0" * 13
_DIGIT = re.compile(r"[0-9]")
_MAILGUN = re.compile(r"key-[0-9A-Za-z]{20,}")
_MAILGUN_API = re.compile(r"[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}\Z")
_JWT = re.compile(r"eyJ[\w-]{8,}\.\.?[\w-]{4,}(?:\.[\w-]*){0,3}")
# A Discord bot token: base64 of its id's digits, a time, a signature.
_DISCORD = re.compile(r"[MNO](?=[\w-]{0,30}\d)[\w-]{23,27}\.[\w-]{6}\.(?=[\w-]{0,40}\d)[\w-]{27,40}\Z")
_PASETO = re.compile(r"[vk][1-4]\.(?:local|public|secret|seal|local-pw|secret-pw)\.[\w-]{20,}")
_OTHER = re.compile(
    r"(?:live|test)_(?=\w{0,40}\d)(?=\w{0,40}[A-Z])(?=\w{0,40}[a-z])[A-Za-z0-9]{24,}\Z|pat-[a-z]{2}\d-[\w-]{30,}|(?:sdk|mob|api)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22,}\Z"
    r"|EAA(?=\w{0,99}\d)[A-Za-z0-9]{60,}|pat[A-Za-z0-9]{14}\.[0-9a-f]{64}|[5KL](?=\w*\d)(?=\w*[a-z])(?=\w*[A-Z])[1-9A-HJ-NP-Za-km-z]{50,51}\Z"
    r"|oy2[a-z0-9]{43}\Z|sk_(?=[a-z_]*\d)[a-z0-9]{28,}\Z|rnd_(?=\w*\d)(?=\w*[A-Z])[A-Za-z0-9]{24,}\Z|S[UAON][A-Z2-7]{56}\Z|re_[A-Za-z0-9]{6,10}_[A-Za-z0-9]{20,}|s\.(?=\w*\d)(?=\w*[A-Z])[A-Za-z0-9]{24}\Z"
)
_OTHERS = "ltpsmaE5KLorS"  # first characters of these
_AZURE = re.compile(r"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,40}")

_FOREIGN_PASSWORDS = (
    "mot de passe", "contraseña", "contrasena", "senha", "wachtwoord", "пароль", "hasło", "lösenord", "密码", "密碼", "パスワード",
)  # fmt: skip

# Options of one or two letters that take a password, by command.
_SHORT_OPTIONS = (
    (("ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami", "ldappasswd", "ldapcompare"), ("w",)),
    (("ldappasswd",), ("s",)),
    (("snmpget", "snmpwalk", "snmpset", "snmpbulk", "snmptrap", "snmptable", "snmpinform"), ("c", "A", "X")),
    (("unzip", "zip", "ipmitool", "mosquitto_", "sqlcmd", "bcp", "tsql", "isql", "ssh-keygen"), ("P",)),
    (("cqlsh", "rdesktop", "mongosh", "mongo", "mongodump", "mongorestore", "mongoexport", "mongoimport"), ("p",)),
    (("openssl",), ("k",)),
    (("ssh-keygen",), ("N",)),
    (("plink", "pscp", "psftp", "putty"), ("pw",)),
)  # fmt: skip


def _short_option(commands: tuple[str, ...], flag: str) -> tuple[tuple[str, ...], re.Pattern[str], str]:
    command = "|".join(commands)
    pattern = re.compile(
        rf"""((?<![\w-])(?:{command})\w{{0,8}}["']?[\s,](?:[^\n|]{{0,300}}?[\s"'])?-{flag}["']?[\s,=]{{1,3}}["']?)"""
        r"""(?!\[redacted|-)[^\s"',|<>]{3,}"""
    )
    return commands, pattern, rf"\g<1>{PLACEHOLDER}"


# Strings of which the text must contain one (in lower case), pattern, replacement.
_PATTERNS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (("digest",), re.compile(r"""(?i)\b(digest\s{1,3})(?=[a-z]{2,12}=")[^\n]+"""), rf"\g<1>{PLACEHOLDER}"),
    (
        ("appid=", "sign="),
        re.compile(r"""(?i)([?&;](?:app_?id|sign)=)(?=[\w%+/=.~-]{0,99}\d)[\w%+/=.~-]{20,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("code=", "sig=", "hmac=", "auth=", "pw=", "pass=", "state=", "nonce=", "key="),
        re.compile(r"""(?i)([?&;](?:code|sig|hmac|auth|pw|pass|state|nonce|key)=)(?!\[redacted)[^\s&"'#<>]{8,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("bearer", "basic", "digest", "negotiate"),
        re.compile(
            r"(?i)\b(bearer|basic|digest|negotiate)(\s{1,3})(?=[a-z._~+/-]{0,200}[0-9=])[a-z0-9._~+/-]{7,}(?![\w=]*=\w)[\w=.~+/-]*(?::[\w-]{16,})?"
        ),
        rf"\g<1>\g<2>{PLACEHOLDER}",
    ),
    # As a WebSocket protocol, for requests without own headers.
    (
        ("bearer.",),
        re.compile(r"(?i)(\bbearer\.)(?=[\w-]{0,99}\d)(?-i:(?=[\w-]{0,99}[A-Z]))[\w-]{14,}"),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # The secret next to its id: `'AKIA…', '…'`.
    (
        ("akia", "asia"),
        re.compile(r"""((?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}["']?\s{0,2}[,:;]\s{0,2}["']?)[\w/+]{40}(?![\w/+=])"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("akia", "asia", "aida", "aroa", "ltai"),
        re.compile(r"(?<![A-Z0-9])(?:AKIA|ASIA|AIDA|AROA|LTAI)[A-Z0-9]{16}(?![A-Z0-9])"),
        PLACEHOLDER,
    ),
    (("sk",), re.compile(r"SK(?<!\wSK)[0-9a-f]{32}(?!\w)"), PLACEHOLDER),
    # Twilio's token after its account
    (
        ("ac",),
        re.compile(r"""(AC(?<!\wAC)[0-9a-f]{32}["']?(?:,\s?|:)["']?)[0-9a-f]{32}(?!\w)"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (("django-insecure-",), re.compile(r"""django-insecure-[^\s"']{20,}"""), PLACEHOLDER),
    # The private members of a JSON Web Key.
    (
        ("kty",),
        re.compile(r"""((?<!\w)["'](?:d|p|q|dp|dq|qi|k)\\{0,7}["']\s{0,2}:\s{0,2}\\{0,7}["'])[\w+/=-]{16,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # The response to `Password:` in base64, as mail servers request it.
    (
        ("ugfzc3dvcmq6",),
        re.compile(
            r"""(UGFzc3dvcmQ6(?:\\[rn]|[^\w+\[]){1,12}(?:send(?:\\[rn]|[^\w+\[]){1,5})?)(?<![\w+])[A-Za-z0-9+/]{4,}={0,2}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Positional arguments of a call: `login('bob', '…')`, `connect('db', 'bob', '…')`, `pgp_sym_decrypt(note, '…')`.
    (
        tuple(
            f"{call}({quote}"
            for call in ("login", "log_in", "signin", "sign_in", "authenticate", "simple_bind", "bind_s", "bind")
            for quote in "'\""
        ),
        re.compile(
            r"""((?i:(?<![a-z])(?:log_?in|sign_?in|authenticate|simple_bind(?:_s)?|bind_s|bind(?=\(.[^"'\n]{0,99}[=@]))\()"""
            r"""["'][^"'\n]{1,200}["'],\s{0,3}[bru]?["'])(?!\[redacted)[^"'\n]{3,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        tuple(
            f"{call}({quote}"
            for call in ("connect", "connection", "ftp", "ftp_tls", "mysqli", "__construct")
            for quote in "'\""
        ),
        re.compile(
            r"""((?i:(?<![a-z])(?:(?:create_)?connect(?:ion)?|ftp|ftp_tls|mysqli(?:->__construct)?)\()(?:["'][^"'\n]{0,200}["'],\s{0,3}){2}[bru]?["'])"""
            r"""(?!\[redacted|utf|latin)(?=[^"'\n]{0,99}[\d!#$%&*?^])[^"'\n]{5,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # After a database address and a user name, and after a user name in credentials: `new PDO('mysql:host=db', 'bob',
    # '…')`.
    (
        ("host=", "dbname=", "jdbc:"),
        re.compile(
            r"""(\(\s?["'](?=[^"'\n]{0,200}(?:host=|dbname=|jdbc:))[^"'\n]{1,300}["'],\s{0,3}["'][^"'\n]{1,100}["'],\s{0,3}["'])"""
            r"""(?!\[redacted)[^"'\n]{3,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("credential(", "credentials(", "passwordauthentication("),
        re.compile(
            r"""((?<!\w)\w{0,40}(?:Credentials?|PasswordAuthentication)\(\s?["'][^"'\n]{1,100}["'],\s{0,3}["'])"""
            r"""(?!\[redacted)(?=[^"'\n]{0,99}[\d!#$%&*?^])[^"'\n/]{4,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("crypt(",),
        re.compile(
            r"""(?i)((?<!\w)(?:pgp_sym_|aes_)?(?:en|de)crypt(?:_bytea|_iv)?\([^()\n]{0,200}?,\s{0,3}')(?!\[redacted)[^'\n]{3,}(?=')"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # The seed words of a wallet.
    (
        (
            "mnemonic",
            "seed phrase",
            "recovery phrase",
            "backup phrase",
            "seed_phrase",
            "recovery_phrase",
            "recovery words",
        ),
        re.compile(
            r"""(?i)((?:mnemonic|(?:seed|recovery|backup)[ _-](?:phrase|words))["']?(?: (?:is|was|phrase))?"""
            r"""\s{0,2}[:=]?\s{0,2}["'(\[]{0,2})"""
            r"""(?-i:[a-z]{3,8}(?:,? [a-z]{3,8}){11,23})(?![a-z])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (("ably",), re.compile(r"((?<![\w.-])[\w-]{6}\.[\w-]{6}:)[\w-]{16,}"), rf"\g<1>{PLACEHOLDER}"),
    (("dapi",), re.compile(r"(?<!\w)dapi[0-9a-f]{32}(?!\w)"), PLACEHOLDER),
    (("-us",), re.compile(r"(?<!\w)[0-9a-f]{32}-us\d{1,2}(?!\w)"), PLACEHOLDER),
    (("~",), _AZURE, PLACEHOLDER),
    (("1//0",), re.compile(r"(?<![\w/.-])1//0[\w-]{20,}"), PLACEHOLDER),
    # URLs that are passwords themselves.
    (
        ("hooks.slack", "/webhooks/", "webhook.office"),
        re.compile(
            r"(?i)(hooks\.slack\.com/\w{1,20}/|discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks/|webhook\.office\.com/)"
            r"""(?!\[)[^\s"'<>]+"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    ((":aa",), re.compile(r"(?<!\d)(\d{6,12}:)AA[\w-]{30,}"), rf"\g<1>{PLACEHOLDER}"),
    # On command lines, in SQL, in a .netrc.
    (
        ("-u",),
        re.compile(
            r"""((?:\s|["'])(?:-u|--(?:proxy-)?user)[\s=,"']{0,4}(?!\d+:\d)[^\s:"'=]{1,100}:)(?!\[redacted)[^\s"']+"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("-u",),
        re.compile(
            r"""((?:\s|["'])(?:-u|-U|--user(?:name)?)[\s=,"']{1,4}[A-Za-z][^\s"',]{0,100}(?=[\s"'])[^\n]{0,200}?[\s"']-[pP]["']?,?\s["']?)"""
            r"""(?!\[redacted|-|[\d:]+(?:[\s"',]|\Z))[^\s"',]{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("mysql", "rar "),
        re.compile(r"""((?<![\w-])(?:mysql|(?:un)?rar)[^\n]{0,200}?[\s"']-p)(?!\[redacted)[^\s"',]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("7z",),
        re.compile(r"""((?<![\w-])7z[^\n]{0,200}?[\s"']-p)(?!\[redacted)[^\s"',]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("sshpass", "login"),
        re.compile(
            r"""((?<![\w-])(?:sshpass|login(?!\w)[^\n]{0,200}?)[\s"',]{1,4}-p[\s"',=]{0,4})(?!\[redacted)[^\s"',]{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("auth ",),
        re.compile(r"""((?<!\w)AUTH (?:[\w.-]{1,60} )?)(?=[^\s"']*[0-9=])[^\s"',]{6,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # SNMP's community is its password
    (("communitydata(",), re.compile(r"""(CommunityData\(["'])(?!\[redacted)[^"'\n]{3,}"""), rf"\g<1>{PLACEHOLDER}"),
    (("pass ",), re.compile(r"""((?<=["'])PASS )(?!\[redacted)[^\s"']{4,}(?=\\[rn]|["'])"""), rf"\g<1>{PLACEHOLDER}"),
    (
        ("redis-cli", "-pass"),
        re.compile(
            r"""((?:redis-cli[^\n]{0,200}?[\s"']-a(?=[\s"'])|[\s"']-pass(?:in|out)?[\s"',]{1,4}pass:)[\s"',]{0,4})"""
            r"""(?!\[redacted)[^\s"']{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Without a scheme: `app:…@tcp(db)/shop`, `app:…@db:3306`, `scott/…@db:1521/XE`.
    (
        ("@",),
        re.compile(
            r"""((?<![\w/.:@+-])(?!(?:mailto|sips?|tel|xmpp|acct|npm):)(?=[\w.+-]{0,60}[a-z])[\w.+-]{1,60}:)(?!\[redacted|//)"""
            r"""(?:[^\s:@"'()/]{1,100}(?=@(?:tcp|udp|unix)\d?\()|(?=[^\s@]{0,99}[\d!$#%&*?^])[^\s:@"'()/]{4,100}(?=@(?!sha\d|md5)(?:[\w.-]{1,100}:\d{2,5}\b|[a-z][\w.-]{0,100}/\w)))"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("@",),
        re.compile(
            r"""((?:(?<![\w/.:@-])|(?<=:thin:))[a-zA-Z][\w$#]{0,60}/)(?!\[redacted)[^\s/@:"'()]{3,100}(?=@(?://)?[\w.-]{1,100}:\d{2,5}/\w)"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("connect('", 'connect("', "oracledb", "cx_oracle"),
        re.compile(
            r"""((?<=["'(])[a-zA-Z][\w$#]{0,60}/)(?!\[redacted)(?=[^\s/@:"'()]{0,99}[\d!#$%&*?^])[^\s/@:"'()]{3,100}(?=@(?!v?\d)[\w.-]{1,100}(?:/\w|["')]))"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Stored password hashes: `$2b$12$…`, `pbkdf2_sha256$…`.
    (
        ("$",),
        re.compile(
            r"(?<![\w$])(?:(?:pbkdf2|argon2|bcrypt|scrypt)\w{0,20})?\$[a-z0-9-]{1,15}\$[\w./+=,$-]{20,}|(?<!\w)pbkdf2_\w{1,20}\$[\w./+=$-]{20,}"
        ),
        PLACEHOLDER,
    ),
    # URLs that grant access to anyone who has them.
    (
        ("reset", "verify", "confirm", "activate", "invit", "magic"),
        re.compile(
            r"""(?i)(/(?:[\w-]{0,30}[-_])?(?:reset|verify|confirm|activate|invite|invitation|magic)(?:[-_][\w-]{0,30})?/(?:[\w-]{1,15}/)?)"""
            r"""(?=[^\s/]*\d)(?![0-9a-f]{8}-[0-9a-f]{4}-)[\w.=-]{16,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("reset", "verify", "confirm", "activate", "invit", "magic"),
        re.compile(
            r"""(?i)(/(?:[\w-]{0,30}[-_])?(?:reset|verify|confirm|activate|invite|invitation|magic)(?:[-_][\w-]{0,30})?/?\?"""
            r"""(?:[\w-]{1,20}=[\w.@%+-]{0,80}&){0,3}[\w-]{1,12}=)(?=[\w.=-]{0,99}\d)(?![0-9a-f]{8}-[0-9a-f]{4}-)[\w.=-]{20,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (("/ical/",), re.compile(r"(/ical/[^\s/]{1,200}/private-)[0-9a-f]{16,}"), rf"\g<1>{PLACEHOLDER}"),
    (
        ("incoming/", "hook/", "hooks/"),
        re.compile(
            r"""(?i)(/(?:incoming|(?:web)?hooks?)/(?:[\w-]{1,30}/)?)(?:(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{24,}(?![\w-])|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # The code of an OAuth request, in JSON or a repr.
    (
        ("authorization_code",),
        re.compile(r"""((?<!\w)["']code\\{0,7}["']\s{0,2}:\s{0,2}\\{0,7}["'])(?!\[redacted)[^\s"']{6,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("identified", "password '"),
        re.compile(
            r"""(?i)\b((?:identified\s{1,3}(?:with\s{1,3}\S{1,40}\s{1,3})?(?:by|as)|with\s{1,3}(?:encrypted\s{1,3})?password)\s{1,3}["'])"""
            r"""(?!\[redacted)[^"'\n]+"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("sqlplus", "sql> "),
        re.compile(
            r"""(?i)((?:sqlplus(?:\s-\w{1,8}){0,5}|sql>\sconn(?:ect)?)\s{1,3}["']?[a-z][\w$#]{0,30}/)(?!\[redacted)[^\s"'@/]{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("login",),
        re.compile(r"(\blogin\s{1,3}\S{1,100}\s{1,3}password\s{1,3})(?!\[redacted)\S+"),
        rf"\g<1>{PLACEHOLDER}",
    ),
    *(_short_option(commands, flag) for commands, flags in _SHORT_OPTIONS for flag in flags),
    (
        ("smbclient ", "rpcclient ", "winexe ", "smbget ", "smbclient'", 'smbclient"'),
        re.compile(
            r"""((?<![\w-])(?:smbclient|rpcclient|winexe|smbget)[^\n]{0,300}?[\s"'](?:-U|--user)[\s=,"']{0,4}[^\s%"',]{1,100}%)"""
            r"""(?!\[redacted)[^\s"',]{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("http -a ", "http --auth"),
        re.compile(
            r"""((?<![\w/.-])(?:https?|xh)["']?[\s,](?:[^\n|]{0,200}?[\s"'])?(?:-a|--auth)[\s=,"']{1,4}(?!\d+:)[^\s:"'=]{1,100}:)(?!\[redacted)[^\s"']+"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (("oauth:",), re.compile(r"""((?<!\w)oauth:)(?=[a-z]*\d)[a-z0-9]{30}(?!\w)"""), rf"\g<1>{PLACEHOLDER}"),
    (
        ("auth =",),
        re.compile(r"""((?<!\w)auth\s=\s\(\s?["'][^"'\n]{1,100}["'],\s?["'])(?!\[redacted)[^"'\n]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("http-basic",),
        re.compile(r"""((?<!\w)http-basic\.\S{1,100}\s[^\s"',]{1,100}\s)(?!\[redacted|-)[^\s"',]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (("session",), re.compile(r"""(?<!\w)00D[A-Za-z0-9]{12,15}![\w.]{40,}"""), PLACEHOLDER),
    (
        ("lftp",),
        re.compile(r"""((?<![\w-])lftp[^\n|]{0,200}?[\s"']-u[\s"',]{1,4}[^\s"',]{1,100},)(?!\[redacted)[^\s"',]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("storepass", "keypass"),
        re.compile(r"""([\s"']-(?:src|dest)?(?:store|key)pass(?:\s|["',=:]){1,4})(?!\[redacted|-)[^\s"',]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # An IPsec shared key, and the text of a Wi-Fi QR code: `: PSK "…"`, `WIFI:T:WPA;S:guest;P:…;;`.
    (("psk ",), re.compile(r"""((?<!\w)PSK\s{1,3}["'])(?!\[redacted)[^"'\n]{3,}"""), rf"\g<1>{PLACEHOLDER}"),
    (
        ("wifi:",),
        re.compile(r"(WIFI:(?:[A-OQ-Z]:[^;\n]{0,100};){0,5}P:)(?!\[redacted)[^;\n]{3,100}"),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Windows commands
    (
        ("schtasks", "net user", "net use", "net.exe"),
        re.compile(
            r"""(?i)((?<![\w.-])(?:schtasks[^\n]{0,300}?\s/rp|net(?:\.exe)?\s{1,3}user\s{1,3}[^\s/]{1,64}|net(?:\.exe)?\s{1,3}use\s{1,3}\S{1,200}(?=\s[^\n]{0,200}/user))\s{1,3})"""
            r"""(?!\[redacted|/)[^\s"',]{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("convertto-securestring",),
        re.compile(r"""(?i)(ConvertTo-SecureString\s{1,3}(?:-String\s{1,3})?["'])(?!\[redacted)[^"'\n]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Typed by a program: `send -- "…\r"`
    (
        ("send ",),
        re.compile(
            r"""((?<!\w)send(?:\s--)?\s["'])(?!\[redacted|(?:yes|no|exit|quit|y|n|q)\b)[^\s"'\\]{5,}(?=\\{1,2}[rn]["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Lines of configuration: routers, and PostgreSQL's password file
    (
        (
            "snmp-server community",
            "pre-shared-key ",
            "privilege ",
            "enable secret",
            "enable password",
            "username ",
            "encrypted-password",
            "tacacs-server ",
            "radius-server ",
            "neighbor ",
            "key-string ",
        ),
        re.compile(
            r"""(?i)((?<![\w-])(?:snmp-server\scommunity|pre-shared-key(?:\s(?:ascii-text|hexadecimal|local|remote|address\s\S{1,60}))?|encrypted-password"""
            r"""|enable\s(?:secret|password)|username\s\S{1,60}(?:\s(?:privilege|role)\s\S{1,20})?\s(?:secret|password)|(?:tacacs|radius)-server\s[^\n]{0,100}?key"""
            r"""|neighbor\s\S{1,60}\spassword|key-string)(?:\s\d{1,2})?\s["']?)(?!\[redacted|(?:is|was|must|for|and|or|not|has|in|to|string)\s)[^\s"',:=]{4,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("pgpass", "password file"),
        re.compile(
            r"""((?<![\w:.-])[\w.*-]{1,100}:(?:\d{4,5}|\*):[A-Za-z*][\w*-]{0,60}:[A-Za-z*][\w*-]{0,60}:)(?!\[redacted|:)\S{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("fs.azure.",),
        re.compile(
            r"""(fs\.azure\.(?:account\.key|sas)[\w.-]{0,100}["']?\s{0,2}[=:,]\s{0,2}["']?)(?!\[redacted)[^\s"',]{8,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # The random part of a path after a version or a word for a key: `/v2/…`, `/with/key/…`
    (
        ("/v1/", "/v2/", "/v3/", "/v4/", "/key/", "/keys/", "/apikey/", "/api_key/", "/token/", "/secret/"),
        re.compile(
            r"""(/(?:v\d|keys?|api_?key|token|secret)/)(?=[\w-]{0,99}\d)(?=[\w-]{0,99}[a-z])(?=[\w-]{0,99}[G-Z])(?![\w-]{0,99}[A-Za-z]{14})[\w-]{24,200}(?![\w.-])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("newstatic", "credentials", "minio.new", "minio(", "boto3."),
        re.compile(r"""(["'][A-Z0-9]{16,32}["'],\s{0,3}["'])[A-Za-z0-9/+]{40}(?=["'])"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("plain,",),
        re.compile(r"""(\{plain,\s?(?:<<"[^"\n]{0,100}">>,\s?)?<<")(?!\[redacted)[^"\n]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("freerdp", "mstsc"),
        re.compile(r"""((?:freerdp|mstsc)[^\n]{0,300}?[\s"']/p:["']?)(?!\[redacted)[^\s"',]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("htpasswd", "rabbitmqctl", "mysqladmin", "wpa_passphrase"),
        re.compile(
            r"""((?<![\w-])(?:htpasswd(?=[^\n]{0,40}[\s"']-\w{0,4}b)[^\n]{1,200}?[\s"',]{1,4}[^\s"',-][^\s"',]{0,200}[\s"',]{1,4}[\w.@+-]{1,100}"""
            r"""|rabbitmqctl[^\n]{1,100}?(?:add_user|change_password|authenticate_user)[\s"',]{1,4}[\w.@+-]{1,100}"""
            r"""|mysqladmin[^\n]{1,200}?[\s"']password|wpa_passphrase[\s"',]{1,4}[^\s"',]{1,64})[\s"',]{1,4})(?!\[redacted|-)[^\s"',|]{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Piped to a command: `echo … | sudo -S`.
    (
        (
            "| sudo",
            "|sudo",
            "passphrase-fd",
            "keepassxc-cli",
            "cryptsetup",
            "| kinit",
            "-stdin",
            "| chpasswd",
            "|chpasswd",
        ),
        re.compile(
            r"""((?<![\w-])(?:echo|printf)(?:\s-\w+)?\s{1,3}(?:["']%s(?:\\{1,2}n)?["']\s)?["']?)(?!\[redacted)[^\n"'|]{3,100}"""
            r"""(?=["']?\s{0,3}\|\s{0,3}(?:sudo\s[^\n|]{0,40}-\w{0,4}S|[^\n|]{0,200}--?(?:password-|passphrase-)?stdin|chpasswd|gpg\s[^\n|]{0,200}-passphrase-fd|keepassxc-cli|cryptsetup|kinit))"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Settings with values: `CONFIG SET requirepass …`, `aws configure set aws_secret_access_key …`, `vault login …`.
    (
        ("requirepass", "masterauth"),
        re.compile(
            r"""(?i)((?<![\w-])(?:requirepass|masterauth)[\s"',:=]{1,4}(?:b['"])?)(?!\[redacted|is\s|was\s|and\s|or\s)[^\s"',]{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("setuser",),
        re.compile(r"""(?i)(\bsetuser[\s"',][^\n]{0,200}?[\s"'][>#])(?!\[redacted)[^\s"',]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        tuple(
            f"config{ure}{between}set" for ure in ("", "ure") for between in (" ", "', '", '", "', " --global ", " -g ")
        ),
        re.compile(
            r"""(?i)((?<![\w-])config(?:ure)?[\s"',]{1,4}(?:(?:--global|-g)\s)?set[\s"',]{1,4}[^\s"',]{0,100}"""
            r"""(?:secret|password|passwd|token|_auth|api_?key|access_?key)\w{0,30}[\s"',]{1,4})(?!\[redacted|-)[^\s"',]{3,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Cipher and signature keys in a line of code: `hmac.new(b'…'`, `jwt.encode(payload, '…'`.
    (
        tuple(
            f"{call}("
            for call in (
                "hmac",
                "hmac.new",
                "hmac.digest",
                "fernet",
                "aes.new",
                "des.new",
                "des3.new",
                "blowfish.new",
                "arc4.new",
                "aesgcm",
                "aesccm",
                "aessiv",
                "chacha20poly1305",
                "chacha20.new",
                "secretkeyspec",
                "signer",
                "serializer",
                "secretbox",
            )
        ),
        re.compile(
            r"""((?<!\w)(?:(?:[Hh]mac|HMAC)(?:\.(?:new|digest|HMAC))?|(?:Multi)?Fernet|(?:AES|DES3?|Blowfish|ARC4|ChaCha20\w{0,12})\.new"""
            r"""|AES(?:GCM|CCM|SIV)?|ChaCha20Poly1305|SecretKeySpec|(?:Timestamp|Token)?Signer|URLSafe(?:Timed)?Serializer"""
            r"""|\w{0,20}JSONWebSignatureSerializer|SecretBox)\(\s?[bru]{0,2}["'])(?!\[redacted|sha\d|md5)[^"'\n]{5,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        (
            *(f"jwt.{verb}(" for verb in ("encode", "decode", "sign", "verify")),
            "createhmac",
            "createcipher",
            "createdecipher",
            "hash_hmac",
            "openssl_encrypt",
            "openssl_decrypt",
        ),
        re.compile(
            r"""((?<!\w)(?:jwt\.(?:encode|decode|sign|verify)\([^"'\n]{1,200},|create(?:Hmac|Cipheriv|Decipheriv|Cipher)\(\s?["'][\w-]{2,30}["'],"""
            r"""|hash_hmac\(\s?["']\w{2,20}["'],[^"'\n]{1,200},|openssl_(?:en|de)crypt\([^"'\n]{1,200},\s?["'][\w-]{2,30}["'],)"""
            r"""\s?(?:key=)?[bru]{0,2}["'])(?!\[redacted|(?:HS|RS|ES|PS)\d)[^"'\n]{5,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # SQL statements that set a password or a key.
    (
        ("password",),
        re.compile(
            r"""(?i)((?<![\w-])(?:set\s{1,3}password\s{1,3}(?:for\s[^=\n]{1,100})?=\s{0,3}(?:\w{1,20}\()?|(?:old_|auth_string_)?password\s?\("""
            r"""|passw(?:or)?d\w{0,20}["`\]]?\s?=\s?(?!str|int|len|get|map|re)\w{1,20}\("""
            r"""|(?:alter|create)\s[^\n]{1,200}?\bpassword\s{1,3})["'])(?!\[redacted|[a-z]+ [a-z]+ )[^"'\n]{3,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("sp_addlogin", "sp_password", "sp_addapprole", "sp_setapprole"),
        re.compile(
            r"""(?i)((?<!\w)sp_(?:addlogin|password|addapprole|setapprole)\s(?:\s?(?:@\w{1,30}\s?=\s?)?N?'[^'\n]{1,100}',){1}\s?(?:@\w{1,30}\s?=\s?)?N?')"""
            r"""(?!\[redacted)[^'\n]{3,}(?=')"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("pragma ", "attach "),
        re.compile(
            r"""(?i)((?<!\w)(?:pragma\s{1,3}(?:\w{1,30}\.)?(?:hex)?(?:re)?key\s{0,3}[=(]|attach\s[^\n]{1,200}?\skey)\s{0,3}["'](?:x')?)(?!\[redacted)[^"'\n]{3,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("crypt(",),
        re.compile(r"""(?i)((?<![\w.])crypt\(\s?')(?!\[redacted)[^'\n]{3,}(?=')"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("login ",),
        re.compile(r"""((?<![\w.])LOGIN ["']?[\w.@+-]{1,100}["']? \\{0,3}["'])(?!\[redacted)[^"'\n\\]{3,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Keys without PEM: PuTTY, minisign, .NET and `openssl -text`, and the start of base64-encoded ones.
    (
        ("private-lines", "private-mac", "private-hash"),
        re.compile(
            r"""(Private-(?:Lines:\s{0,2}\d{1,3}(?:\s|\\[rn]){1,4}|(?:MAC|Hash):\s{0,2}))(?!\[redacted)[\w+/=]+(?:(?:\r?\n|(?:\\r)?\\n)(?=[\w+/=]{20})[\w+/=]+)*"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("minisign",),
        re.compile(r"""(secret key(?:\s|\\[rn]){1,4})(?!\[redacted)RW[\w+/=]{12,}"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("rsakeyvalue", "rsaparameters", "inverseq"),
        re.compile(r"""(<(D|P|Q|DP|DQ|InverseQ)>)[\w+/=\s]{8,}(?=</)"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("privateexponent:", "prime1:", "prime2:", "priv:"),
        re.compile(
            r"""(?<!\w)((?:privateExponent|prime[12]|priv):\s{1,10})(?:[0-9a-f]{2}:\s{0,10}){7,}[0-9a-f]{2}(?!\w)"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("ls0tls1crudjti", "ibaa", "ibad", "mhccaqee", "mighageamb", "migkageb", "mc4caqawbq", "b3blbnnzac1rzxkt"),
        re.compile(
            r"(?<![\w+/])(?:LS0tLS1CRUdJTi(?:BQUklWQV|BSU0Eg|BFQyBQ|BPUEVOU|BFTkNSW|BEU0Eg)|MII[A-J][\w+/]{2}IBA[AD]|MHcCAQEE|MIGHAgEAMB|MIGkAgEB"
            r"|MC4CAQAwBQ|b3BlbnNzaC1rZXkt)[\w+/=]{16,}"
        ),
        PLACEHOLDER,
    ),
    # Cookies by name, and values followed by a cookie's attributes.
    (
        (
            ".aspxauth=",
            ".aspnet",
            "wordpress_",
            "rememberme=",
            "remember_me=",
            "auth_tkt=",
            "li_at=",
            "fedauth=",
            "rtfa=",
            "estsauth",
            "oauth2_proxy",
            "cf_clearance",
            "apisid=",
            "hsid=",
            "ssid=",
            "psid",
            "mellon-",
            "robloxsecurity",
        ),
        re.compile(
            r"""(?i)((?<![\w-])(?:\.aspxauth|\.aspnet(?:core)?(?:\.\w{1,40}){1,4}|wordpress(?:_sec|_logged_in)?_\w{1,64}|remember_?me|auth_tkt|li_at"""
            r"""|fedauth|rtfa|estsauth\w{0,20}|_?oauth2_proxy\w{0,20}|cf_clearance|s?apisid|[hs]sid|__secure-\w{0,4}psid\w{0,4}|mellon-\w{1,30}"""
            r"""|\.robloxsecurity)=)(?!\[redacted)(?=[^\s;,"'&]{0,99}\d)[^\s;,"'&]{16,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        tuple(
            f";{blank}{name}"
            for blank in ("", " ")
            for name in ("path=", "expires=", "max-age=", "domain=", "httponly", "secure", "samesite=")
        ),
        re.compile(
            r"""(?i)((?<![\w.!#$&'*+^`|~-])[\w.!#$&*+^`|~-]{1,80}=)(?!\[redacted)(?=[^\s;,"'=]{0,99}\d)[^\s;,"'=]{16,}={0,2}"""
            r"""(?=;\s?(?:path=|expires=|max-age=|domain=|httponly|secure|samesite=))"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
)
# The same for texts that name a secret: in a sentence, the value after the name is not a word.
_SENTENCES: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (
        ("pin ", "otp ", "cvv", "cvc", "passcode ", " code", "tan "),
        re.compile(
            r"""(?i)((?<![\w-])(?:pin|otp|tan|cvv2?|cvc2?|passcode"""
            r"""|(?:security|verification|one-time|2fa|mfa|otp|login|recovery|backup) code)"""
            r"""(?: (?:code|is|was))?:? [("']?)\d{3,8}(?![\w-]|\.\w)"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("password", "passwd", "passphrase", "passwort", "kennwort", "pwd", "api key", *_FOREIGN_PASSWORDS),
        re.compile(
            r"""(?i)((?<![\w-])(?:(?:[\w-]{0,30}[_-])?(?:password|passwd|passphrase|passwort|kennwort|pwd)|api key|"""
            rf"""{"|".join(_FOREIGN_PASSWORDS)})"""
            r"""(?: (?:is|was|of|used|given|set to|for [\w@.-]{1,60}))?"""
            r"""(?::? |\s?(?:->|→|\|)\s?|\t{1,3}|\.{2,20}:? )(?:[("'“„`]{0,2}|[«「『][ \u00a0\u202f]?))"""
            r"""(?!\[redacted)(?=[^\s"'”)|]{0,200}[a-z])(?:(?=[^\s"'”)|]{0,200}[0-9])"""
            r"""|(?-i:(?=[a-z][^\s"'”)|]{0,100}[-_!@#$%&*][^\s"'”)|]{0,100}[A-Z])))[^\s"'”»」』()=|]{6,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("token ", "key "),
        re.compile(
            r"""(?i)((?<!\w)(?:(?<!-)[\w-]{0,30}token"""
            r"""|(?:secret|access|account|private|[\w-]{0,30}api)[ _-]?key)"""
            r"""(?: (?:is|was))?:? [("'“`]{0,2})(?!\[redacted)(?=[\w.~+/=-]{0,200}[a-z])(?=[\w.~+/=-]{0,200}\d)[\w.~+/=-]{15,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("secret ",),
        re.compile(
            r"""((?<!\w)(?i:[\w-]{0,30}secret(?: (?:is|was|key))?:? [("'“`]{0,2})(?!\[redacted)(?=[\w.~+/=-]{0,200}[a-z])"""
            r"""(?=[\w.~+/=-]{0,200}[A-Z])(?=[\w.~+/=-]{0,200}\d))[\w.~+/=-]{15,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # After more words of the sentence, a random value: `CSRF token from POST incorrect: …`.
    (
        ("token ", "secret ", "password ", "credential", "session ", "api key "),
        re.compile(
            r"""(?i)((?<![a-z])(?:token|secret|password|credentials?|session|api key)(?: [\w'’-]{1,20}){1,6}:\s{1,2}["'(]?)"""
            r"""(?-i:(?=[\w+/=~%-]{0,99}[0-9])(?=[\w+/=~%-]{0,99}[a-z])(?=[\w+/=~%-]{0,99}[G-Z]))(?=[\w~%-]{0,99}[a-z0-9+/=]{12})"""
            r"""[\w+/=~%-]{14,}(?![\w./])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("credential",),
        re.compile(
            r"""(?i)((?<![a-z])credentials?(?: (?:for|of|are|were|used|given))?:? ["'(]{0,2}[\w.@+-]{1,60}[/:])(?!//|\[redacted)"""
            r"""(?!\S{0,99}\.[a-z]{2,5}(?!\w))(?=[^\s"'()/,]{0,99}[\d!#$%&*?^_])[^\s"'()/,]{4,}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("credential",),
        re.compile(
            r"""(?i)((?<![a-z])credentials?[^\n("']{0,30}\(["']?[\w.@+-]{1,60}["']?,\s?["']?)(?!\[redacted)(?=[^\s"'(),]{0,99}[\d!#$%&*?^])[^\s"'(),]{4,}(?=["']?\))"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # With quotes escaped by HTML or JSON.
    (
        ("&quot;", "&#34;", "\\u0022"),
        re.compile(
            r"""(?i)((?<!\w)[\w-]{0,30}(?:password|passwd|secret|token|api_?key)(?:&quot;|&#34;|\\u0022)?\s?[:=]\s?(&quot;|&#34;|\\u0022))"""
            r"""(?!\[redacted)(?:(?!\2)[^\n]){3,200}"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # An Erlang term, `{password,<<"…">>}`; a change, `password: "" => "…"`.
    (
        ("password", "passwd", "secret", "token", "pass", "api_key"),
        re.compile(
            r"""(?i)((?:(?:\{\s?["']?|<<["'])[\w-]{0,30}(?:password|passwd|secret|token|api_key|pass)(?:["'](?:>>)?)?\s?(?:,|=>)\s?(?:<<)?"""
            r"""|(?<![\w-])[\w-]{0,30}(?:password|passwd|secret|token|api_key|pass)\s?(?:=>?|:=?)\s?<<)["'])(?!\[redacted)[^"'\n]{3,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("private key", "private_key", "privatekey"),
        re.compile(r"""(?i)(private[ _-]?key[^\n]{0,60}?[:= ]["']?)(?:0x)?[0-9a-f]{64}(?!\w)"""),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("iban", "ssn"),
        re.compile(
            r"(?i)((?<!\w)(?:iban:? (?=[a-z]{2}\d\d)|ssn:? (?=\d{3}-?\d\d-?\d{4}(?!\d))))"
            r"[a-z\d-]{4,}(?: [a-z\d]{4}){0,7}(?: \d{1,4}(?!\w))?"
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    # Arguments of a call: `set_password('…')`, `HTTPBasicAuth('mo', '…')`.
    (
        ("password(", "passwd(", "secret(", "token(", "key(", "auth(", "auth1(", "secretstr(", "secretbytes("),
        re.compile(
            r"""((?:(?<!\w)(?:set|with|change|reset)_?\w{0,30}(?i:password|passwd|secret|token|api_?key)\((?:\s?["'][^"'\n]{0,200}["'],){0,3}"""
            r"""|Secret(?:Str|Bytes)\(b?|(?<!\w)\w{0,30}Auth[12]?\((?:\w+=)?["'][^"'\n]{1,100}["'], {0,2}"""
            r""")\s?["'])(?!\[redacted|\*\*\*)[^"'\n]{3,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
    (
        ("got ", "received ", "given ", "found "),
        re.compile(
            r"""(?i)((?<![\w-])[\w-]{0,30}(?:password|passwd|passphrase|secret|(?:secret|api|private|access)[_-]?key)(?![\w-])[^\n"']{1,80}?"""
            r"""\b(?:got|received|given|found):? [bru]{0,2}["'])(?!\[redacted)[^"'\n]{3,}(?=["'])"""
        ),
        rf"\g<1>{PLACEHOLDER}",
    ),
)
# JSON may escape a slash as `\/`.
_URL = re.compile(r""":(?:\\{0,7}/){2}([^\s"'<>:]*(?::(?!\\{0,7}/\\{0,7}/)[^\s"'<>:]*)*)""")
_PORT = re.compile(r"\d{1,5}(?:[/?#\\]|\Z)")
_CARD = re.compile(
    r"[2-6](?<![\w.-].)(?:(?:(?<!2)\d{3}|(?<=2)[2-7]\d{2})(?:[ -]?\d{4}[ -]?\d{4}[ -]?\d{4}|([./_\u00a0])\d{4}\1\d{4}\1\d{4})"
    r"|(?<=3)[046-9]\d{2}(?:[ -]?\d{6}[ -]?\d{4,5}|([./_\u00a0])\d{6}\2\d{4,5}))(?:=\d{7,24})?(?![\w.]?\d)"
)
_OF_IBANS = bytes(ord("0" if 48 <= code <= 57 else "A" if 65 <= code <= 90 else " ") for code in range(256))
_IBAN = re.compile(
    r"(?<![A-Za-z0-9_-])[A-Z]{2}[0-9]{2}(?=[A-Z0-9 ]{0,40}[0-9])(?:[A-Z0-9]{11,30}|(?: [A-Z0-9]{4}){2,7}(?: [A-Z0-9]{1,3})?)(?![\w-])"
)
# A URL encodes a blank as `+` or `%20`; SSH2 markers have four dashes.
_BLANK = r"(?: |\+|%20)"
_KEY_BEGINS, _KEY_ENDS = (
    re.compile(
        rf"----[- ]{word}{_BLANK}(?:[A-Z0-9]{{1,12}}{_BLANK}){{0,4}}PRIVATE{_BLANK}KEY(?:{_BLANK}BLOCK)?[- ]----"
    )
    for word in ("BEGIN", "END")
)
_ANY_END = re.compile(rf"----[- ]END{_BLANK}")


def without_private_keys(text: str) -> tuple[str, int]:
    """Return the text without private keys, and the number hidden.

    Not one pattern: that would scan from every BEGIN to the end of the text.
    """
    if "PRIVATE" not in text:
        return text, 0
    parts, hidden, at = [], 0, 0
    began, ended = _KEY_BEGINS.search(text), _KEY_ENDS.search(text)
    if ended and (began is None or ended.start() < began.start()):  # the start of the key was cut off
        parts, hidden, at = [PLACEHOLDER], 1, ended.end()
    while found := _KEY_BEGINS.search(text, at):
        parts += [text[at : found.start()], PLACEHOLDER]
        hidden += 1
        ends = _ANY_END.search(text, found.end())
        if ends is None:  # a truncated key is still a key
            return "".join(parts), hidden
        close = text.find("----", ends.end())
        at = close + 4 if 0 <= close <= ends.start() + 80 else ends.end()
        at += text.startswith("-", at)
    parts.append(text[at:])
    return "".join(parts), hidden


def words_of(text: str) -> set[str] | None:
    """Return the words of a text, which select its patterns; None if they are too many or too long to be cached."""
    words = set(_WORD.findall(text))
    if len(text) > _ONE_WORD and (len(words) > _MOST_WORDS or max(map(len, words), default=0) > _LONGEST_WORD):
        return None
    return words


def without_known_forms(text: str, words: Collection[str] | None) -> tuple[str, int]:
    """Return `text` without secrets of a known form, and the number hidden. `words`: the text's `words_of`."""
    hidden = 0
    if "/" in text and ":" in text:
        text, hidden = replace_counted(_URL, _hide_userinfo, text)
    text, found = _without_patterns(text, _FORMS, words)
    hidden += found
    text, tokens = _without_tokens(text)
    cards = accounts = 0
    characters = text.encode("utf-8", "replace")
    if not text.isascii() or characters.translate(_OF_CARDS, b" -./_").find(_CARD_LONG) >= 0:
        text, cards = replace_counted(_CARD, _hide_card, text)
    if b"AA00" in characters.translate(_OF_IBANS):
        text, accounts = replace_counted(_IBAN, _hide_iban, text)
    return text, hidden + tokens + cards + accounts


def without_sentences(text: str, words: Collection[str] | None) -> tuple[str, int]:
    """Return `text`, which names a secret, without the values after the name in a sentence, and the number hidden."""
    return _without_patterns(text, _SPOKEN, words)


_Pattern = tuple[tuple[str, ...], re.Pattern[str], str]


class _ByWord:
    """Patterns indexed by words of a text: most words are known from earlier texts, and most select no pattern."""

    def __init__(self, patterns: tuple[_Pattern, ...]) -> None:
        self._patterns = patterns
        # Each required string is a search of the complete text, so those sharing a word have their own entry.
        self._entries: list[tuple[str, _Pattern]] = []
        for needed, pattern, replacement in patterns:
            parts = [max(_WORD.findall(need), key=len, default="") for need in needed]
            if not all(len(part) > 1 for part in parts):
                self._entries.append(("", (needed, pattern, replacement)))
                continue
            for part in dict.fromkeys(parts):
                own = tuple(need for need, of_need in zip(needed, parts, strict=True) if of_need == part)
                self._entries.append((part, (own, pattern, replacement)))
        self._always = {n for n, (part, _) in enumerate(self._entries) if not part}
        self._usual = [self._entries[n][1] for n in sorted(self._always)]
        self._remembered = lru_cache(maxsize=8192)(self._numbers)

    def select(self, words: Collection[str] | None) -> Sequence[_Pattern]:
        """Return the patterns that a text with these words may need, in order; one may occur several times in a row."""
        if words is None:
            return self._patterns
        numbers: set[int] = set()
        for found in map(self._remembered, words):
            if found:
                numbers.update(found)
        return [self._entries[n][1] for n in sorted(numbers | self._always)] if numbers else self._usual

    def _numbers(self, word: str) -> tuple[int, ...]:
        lower = folded(word)
        return tuple(n for n, (part, _) in enumerate(self._entries) if part and part in lower)


_FORMS, _SPOKEN = _ByWord(_PATTERNS), _ByWord(_SENTENCES)


def _without_patterns(text: str, patterns: _ByWord, words: Collection[str] | None) -> tuple[str, int]:
    lower, hidden, tried, missing = folded(text), 0, None, ""
    for needed, pattern, replacement in patterns.select(words):
        if pattern is tried:
            continue
        for need in needed:
            if need is missing:  # of the previous pattern
                continue
            if need in lower:
                text, count = pattern.subn(replacement, text)
                hidden, tried = hidden + count, pattern
                break
            missing = need
    return text, hidden


def folded(text: str) -> str:
    """Return the text in lower case, with characters that a case-insensitive pattern matches as a to z: `ſ`, `ı`
    and the Kelvin sign.
    """
    return text.lower() if text.isascii() else text.casefold().replace("ı", "i")


def _without_tokens(text: str) -> tuple[str, int]:
    if not text.isascii():
        return replace_counted(_RUN, lambda found: _shown_token(found[0]), text)
    # The same runs without a pattern tried at every character, at a tenth of the cost; most texts have none.
    marked = text.encode().translate(_OF_RUNS)
    start = marked.find(_LONG_RUN)
    if start < 0:
        return text, 0
    parts, hidden, at = [], 0, 0
    while start >= 0:
        end = marked.find(b" ", start)
        end = len(text) if end < 0 else end
        shown = _shown_token(text[start:end])
        if shown is not None:
            parts += [text[at:start], shown]
            hidden, at = hidden + 1, end
        start = marked.find(_LONG_RUN, end)
    return "".join([*parts, text[at:]]), hidden


def is_card(number: int) -> bool:
    found = _CARD.fullmatch(str(number))
    return found is not None and _hide_card(found) is not None


def replace_counted(
    pattern: re.Pattern[str], hide: Callable[[re.Match[str]], str | None], text: str
) -> tuple[str, int]:
    """Replace like `subn`, but count only real replacements (`hide` returns None to leave a match unchanged)."""
    count = 0

    def replacement(found: re.Match[str]) -> str:
        nonlocal count
        shown = hide(found)
        if shown is None:
            return found[0]
        count += 1
        return shown

    return pattern.sub(replacement, text), count


def _hide_userinfo(found: re.Match[str]) -> str | None:
    """Return `user:password@` of a URL without password; the name stays unless it is a token."""
    rest = found[1]
    at = rest.rfind("@")
    user, colon, password = rest[: max(at, 0)].partition(":")
    if at < 0 or any(c in user for c in "/?#"):
        return None
    before = found[0][: -len(rest)]
    if colon:
        # `host:8443/a/b@2x.png`: this is a port.
        if password in {"", PLACEHOLDER} or (_PORT.match(password) and not password.isdigit()):
            return None
        if _is_token(user):
            user = PLACEHOLDER
        return f"{before}{user}:{PLACEHOLDER}{rest[at:]}"
    if _is_token(user):
        return f"{before}{PLACEHOLDER}{rest[at:]}"
    return None


def _is_token(user: str) -> bool:
    return len(user) >= 16 and any(c.isdigit() for c in user)


def _shown_token(run: str) -> str | None:
    if run.startswith(_PREFIXES):
        prefix = next(prefix for prefix in _PREFIXES if run.startswith(prefix))
        return PLACEHOLDER if len(run) >= len(prefix) + 16 else None
    if run.startswith(_PREFIXES_OF_MORE):
        return PLACEHOLDER if _DIGIT.search(run, 3) and not run.startswith(_NO_TOKENS) else None
    if ".atlasv1." in run or (run[0] in "MNO" and _DISCORD.match(run)):
        return PLACEHOLDER
    if run[0] in _OTHERS and _OTHER.match(run):
        return PLACEHOLDER
    if run[32:33] == "-" and _MAILGUN_API.match(run):
        return PLACEHOLDER
    known = (_JWT if run.startswith("eyJ") else _PASETO if run[1:2] in "1234" else _MAILGUN).match(run)
    return PLACEHOLDER + run[known.end() :] if known else None


def _hide_iban(found: re.Match[str]) -> str | None:
    """Return the placeholder for an account number with valid check digits, which 1 in 97 other words have."""
    characters = found[0].replace(" ", "")
    digits = "".join(str(int(character, 36)) for character in characters[4:] + characters[:4])
    return PLACEHOLDER if 15 <= len(characters) <= 34 and int(digits) % 97 == 1 else None


def _hide_card(found: re.Match[str]) -> str | None:
    digits = [int(c) for c in found[0].partition("=")[0] if c.isdigit()]
    doubled = (sum(divmod(2 * d, 10)) if i % 2 else d for i, d in enumerate(reversed(digits)))
    return PLACEHOLDER if sum(doubled) % 10 == 0 else None
