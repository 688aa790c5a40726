"""Texts that people paste into a search."""

from __future__ import annotations

from hypothesis import strategies as st

# The error as it is stored (type, message), and the line as people copy it from logs, consoles and trackers.
PASTED = [
    ("socket.gaierror", "[Errno -2] Name or service not known", "[Errno -2] Name or service not known"),
    ("KeyError", "'foo'", "KeyError: 'foo'"),
    ("TimeoutError", "x", "TimeoutError('x')"),
    (
        "ConnectionRefusedError",
        "[Errno 111] Connection refused",
        "ConnectionRefusedError: [Errno 111] Connection refused",
    ),
    (
        "ValueError",
        "invalid literal for int() with base 10: ''",
        "ValueError: invalid literal for int() with base 10: ''",
    ),
    ("ValueError", 'bad value: "a b"', 'ValueError: bad value: "a b"'),
    ("ZeroDivisionError", "division by zero", "ZeroDivisionError: division by zero"),
    (
        "AttributeError",
        "'NoneType' object has no attribute 'id'",
        "AttributeError: 'NoneType' object has no attribute 'id'",
    ),
    (
        "TypeError",
        "f() got an unexpected keyword argument 'x'",
        "TypeError: f() got an unexpected keyword argument 'x'",
    ),
    (
        "TypeError",
        "unsupported operand type(s) for +: 'int' and 'str'",
        "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    ),
    ("IndexError", "list index out of range", "IndexError: list index out of range"),
    (
        "json.decoder.JSONDecodeError",
        "Expecting value: line 1 column 1 (char 0)",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    ),
    (
        "UnicodeDecodeError",
        "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    (
        "FileNotFoundError",
        "[Errno 2] No such file or directory: 'C:\\\\tmp\\\\x.csv'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'C:\\\\tmp\\\\x.csv'",
    ),
    (
        "PermissionError",
        "[Errno 13] Permission denied: '/var/x'",
        "PermissionError: [Errno 13] Permission denied: '/var/x'",
    ),
    ("OSError", "[Errno 28] No space left on device", "OSError(28, 'No space left on device')"),
    (
        "requests.exceptions.ConnectionError",
        "('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
        "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
    ),
    (
        "requests.exceptions.ConnectTimeout",
        "HTTPSConnectionPool(host='api.example.com', port=443): Max retries exceeded with url: /v1/x?a=1&b=2 (Caused by ConnectTimeoutError(<urllib3.connection.HTTPSConnection object at 0x7f>, 'Connection to api.example.com timed out. (connect timeout=5)'))",
        "HTTPSConnectionPool(host='api.example.com', port=443): Max retries exceeded with url: /v1/x?a=1&b=2 (Caused by ConnectTimeoutError(<urllib3.connection.HTTPSConnection object at 0x7f>, 'Connection to api.example.com timed out. (connect timeout=5)'))",
    ),
    (
        "requests.exceptions.HTTPError",
        "503 Server Error: Service Unavailable for url: https://api.example.com/hooks",
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://api.example.com/hooks",
    ),
    (
        "requests.exceptions.HTTPError",
        "429 Client Error: Too Many Requests for url: http://127.0.0.1:9000/",
        "429 Client Error: Too Many Requests for url: http://127.0.0.1:9000/",
    ),
    ("httpx.ReadTimeout", "The read operation timed out", "httpx.ReadTimeout: The read operation timed out"),
    (
        "httpx.ConnectError",
        "[Errno -3] Temporary failure in name resolution",
        "httpx.ConnectError: [Errno -3] Temporary failure in name resolution",
    ),
    (
        "ssl.SSLCertVerificationError",
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:992)",
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:992)",
    ),
    (
        "smtplib.SMTPServerDisconnected",
        "Connection unexpectedly closed",
        "smtplib.SMTPServerDisconnected: Connection unexpectedly closed",
    ),
    (
        "smtplib.SMTPRecipientsRefused",
        "{'a@b.example': (550, b'5.1.1 User unknown')}",
        "smtplib.SMTPRecipientsRefused: {'a@b.example': (550, b'5.1.1 User unknown')}",
    ),
    (
        "smtplib.SMTPAuthenticationError",
        "(535, b'5.7.8 Authentication failed')",
        "SMTPAuthenticationError(535, b'5.7.8 Authentication failed')",
    ),
    (
        "redis.exceptions.ConnectionError",
        "Error 111 connecting to localhost:6379. Connection refused.",
        "redis.exceptions.ConnectionError: Error 111 connecting to localhost:6379. Connection refused.",
    ),
    (
        "redis.exceptions.ResponseError",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "redis.exceptions.ResponseError: WRONGTYPE Operation against a key holding the wrong kind of value",
    ),
    (
        "redis.exceptions.OutOfMemoryError",
        "command not allowed when used memory > 'maxmemory'.",
        "OutOfMemoryError: command not allowed when used memory > 'maxmemory'.",
    ),
    (
        "psycopg.OperationalError",
        'connection failed: connection to server at "10.0.0.5", port 5432 failed: FATAL:  sorry, too many clients already',
        'psycopg.OperationalError: connection failed: connection to server at "10.0.0.5", port 5432 failed: FATAL:  sorry, too many clients already',
    ),
    (
        "psycopg.errors.UniqueViolation",
        'duplicate key value violates unique constraint "users_email_key"\nDETAIL:  Key (email)=(a@b.example) already exists.',
        'duplicate key value violates unique constraint "users_email_key" DETAIL:  Key (email)=(a@b.example) already exists.',
    ),
    (
        "psycopg.errors.DeadlockDetected",
        "deadlock detected\nDETAIL:  Process 1 waits for ShareLock on transaction 2; blocked by process 3.",
        "deadlock detected DETAIL:  Process 1 waits for ShareLock on transaction 2; blocked by process 3.",
    ),
    (
        "psycopg.errors.SyntaxError",
        'syntax error at or near "FROM"\nLINE 1: SELECT * FROM FROM x',
        'syntax error at or near "FROM" LINE 1: SELECT * FROM FROM x',
    ),
    ("django.db.utils.OperationalError", "database is locked", "django.db.utils.OperationalError: database is locked"),
    (
        "django.db.utils.IntegrityError",
        "UNIQUE constraint failed: shop_order.number",
        "IntegrityError at /orders/ UNIQUE constraint failed: shop_order.number".replace(" at /orders/", ""),
    ),
    (
        "shop.models.Order.DoesNotExist",
        "Order matching query does not exist.",
        "shop.models.Order.DoesNotExist: Order matching query does not exist.",
    ),
    (
        "sqlalchemy.exc.OperationalError",
        "(psycopg2.OperationalError) server closed the connection unexpectedly\n(Background on this error at: https://sqlalche.me/e/20/e3q8)",
        "sqlalchemy.exc.OperationalError: (psycopg2.OperationalError) server closed the connection unexpectedly (Background on this error at: https://sqlalche.me/e/20/e3q8)",
    ),
    (
        "sqlalchemy.exc.TimeoutError",
        "QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00",
        "QueuePool limit of size 5 overflow 10 reached, connection timed out, timeout 30.00",
    ),
    (
        "botocore.exceptions.ClientError",
        "An error occurred (AccessDenied) when calling the PutObject operation: Access Denied",
        "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the PutObject operation: Access Denied",
    ),
    (
        "botocore.exceptions.EndpointConnectionError",
        'Could not connect to the endpoint URL: "https://s3.example.com/x"',
        'Could not connect to the endpoint URL: "https://s3.example.com/x"',
    ),
    ("celery.exceptions.SoftTimeLimitExceeded", "SoftTimeLimitExceeded()", "SoftTimeLimitExceeded()"),
    (
        "billiard.exceptions.WorkerLostError",
        "Worker exited prematurely: signal 9 (SIGKILL) Job: 14.",
        "WorkerLostError('Worker exited prematurely: signal 9 (SIGKILL) Job: 14.')",
    ),
    ("billiard.exceptions.TimeLimitExceeded", "TimeLimitExceeded(30,)", "TimeLimitExceeded(30,)"),
    (
        "kombu.exceptions.OperationalError",
        "Error 111 connecting to localhost:6379. Connection refused.",
        "kombu.exceptions.OperationalError: Error 111 connecting to localhost:6379.",
    ),
    (
        "stripe.error.CardError",
        "Request req_1: Your card was declined.",
        "stripe.error.CardError: Request req_1: Your card was declined.",
    ),
    (
        "stripe.error.RateLimitError",
        "Request rate limit exceeded -- see https://stripe.com/docs",
        "Request rate limit exceeded -- see https://stripe.com/docs",
    ),
    ("AssertionError", "assert 1 == 2", "AssertionError: assert 1 == 2"),
    ("AssertionError", "-1 is not >= 0", "AssertionError: -1 is not >= 0"),
    ("RuntimeError", "maximum recursion depth exceeded", "RuntimeError: maximum recursion depth exceeded"),
    (
        "RecursionError",
        "maximum recursion depth exceeded while calling a Python object",
        "RecursionError: maximum recursion depth exceeded while calling a Python object",
    ),
    ("MemoryError", "", "MemoryError"),
    ("MemoryError", "", "MemoryError()"),
    (
        "ImportError",
        "cannot import name 'x' from partially initialized module 'y' (most likely due to a circular import) (/app/y.py)",
        "ImportError: cannot import name 'x' from partially initialized module 'y' (most likely due to a circular import) (/app/y.py)",
    ),
    ("ModuleNotFoundError", "No module named 'packaging'", "ModuleNotFoundError: No module named 'packaging'"),
    (
        "jinja2.exceptions.UndefinedError",
        "'dict object' has no attribute 'name'",
        "'dict object' has no attribute 'name'",
    ),
    (
        "pydantic.ValidationError",
        "1 validation error for Order\namount\n  Input should be a valid number [type=float_type, input_value='x', input_type=str]",
        "1 validation error for Order amount Input should be a valid number [type=float_type, input_value='x', input_type=str]",
    ),
    (
        "shop.errors.PaymentRefused",
        "amount 10.00 OR currency EUR refused (code: -17)",
        "amount 10.00 OR currency EUR refused (code: -17)",
    ),
    ("shop.errors.Broken", 'said: "{\\"a\\": 1}"', 'said: "{\\"a\\": 1}"'),
    ("Error", "connect ECONNREFUSED 127.0.0.1:6379", "Error: connect ECONNREFUSED 127.0.0.1:6379"),
    (
        "TypeError",
        "Cannot read properties of undefined (reading 'id')",
        "Uncaught TypeError: Cannot read properties of undefined (reading 'id')".removeprefix("Uncaught "),
    ),
    ("struct.error", "unpack requires a buffer of 4 bytes", "struct.error: unpack requires a buffer of 4 bytes"),
    ("zipfile.BadZipFile", "File is not a zip file", "zipfile.BadZipFile: File is not a zip file"),
]
PIECES = st.sampled_from(
    ["queue:", "error:", "-error:", "message:", "kwargs.a:", "-args.0.b:", "trace:", "attempts:", "age:", "since:", "state:", "is:", "|", "attempts", "OR", " OR ", "(", ")", '"', "\\",
     '\\"', "-", '-"', "*", ",", " ", "  ", "a", "b.c", "x y", ":", "=", ">=", "<2d", "3", "2..5", "foo:", "'", "dead",
     "2026-11-20T10:00Z", "\n", "é", "\u2028", "[", "]"]
)  # fmt: skip
TANGLED = st.lists(PIECES, max_size=14).map("".join)
