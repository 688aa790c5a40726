"""Secrets as libraries, drivers and frameworks write them, each between ⟦ and ⟧: what stands there must be read nowhere.

The first were written without a look at the rules, every second of them kept aside until the rules were done; `FURTHER` were written
along with them. `clean` makes texts and arguments that hold no secret, with names and numbers that look like some.
"""

from __future__ import annotations

import hashlib
import re
import string
from random import Random
from typing import Any
from uuid import UUID

# (where it stands: in an exception, its cause, a positional or a named argument, a header; the value)
UNSEEN: list[tuple[str, Any]] = [
    (
        "exc",
        "httpx.HTTPStatusError: Client error '401 Unauthorized' for url 'https://api.acme.io/v2/orders' request headers: "
        "Headers({'host': 'api.acme.io', 'authorization': 'Token ⟦9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b⟧'})",
    ),
    (
        "exc",
        "HTTPError 403: sent Authorization: SharedKey acmestore:⟦Zl3tWk0yU0JxT1BhNnE4UjRkVzE=⟧ got AuthenticationFailed",
    ),
    (
        "header",
        {
            "Authorization": 'Hawk id="dh37fgj492je", ts="1353832234", nonce="j4h3g2", '
            'mac="⟦6R4rV5iE+NPoym+WwjeHzjAGXUtLNIxmo1vpMofpLAE=⟧"'
        },
    ),
    ("exc", "upstream refused: > Authorization: GoogleLogin auth=⟦DQAAAGgAdk3fA5N7fq⟧ > Accept: */*"),
    (
        "exc",
        'Authorization: OAuth oauth_consumer_key="xvz1evFS4wEEPTGEFPHBog", '
        'oauth_token="⟦370773112-GmHxMAgYyLbNEtIKZeRNFsMKPR9⟧", oauth_version="1.0" rejected',
    ),
    (
        "kwarg",
        {
            "request": {
                "headers": [["Accept", "*/*"], ["Authorization", "GenieKey ⟦eb243592-faa2-4ba2-a551-1afdf565c889⟧"]]
            }
        },
    ),
    (
        "exc",
        "curl: (22) The requested URL returned error: 401; cmd was curl -sS -u deploy:⟦m4rmalade-Toast⟧ "
        "https://repo.acme.io/artifacts",
    ),
    (
        "exc",
        "Command '['curl', '-H', 'X-Auth-Key: ⟦c2547eb745079dac9320b638f5e225cf483cc5cfdda41⟧', "
        "'https://api.cloudflare.com/client/v4/zones']' returned non-zero exit status 22.",
    ),
    (
        "exc",
        'Proxy-Authorization: Digest username="svc", realm="corp", nonce="7ypf/xlj9XXwfDPEoM4URrv", '
        'response="⟦8ca523f5e9506fed4657c9700eebdbec⟧" not accepted',
    ),
    ("header", {"x-functions-key": "⟦kQ9wYz7uTq0aS3nVbX2mLd8eRf5gHj1p⟧"}),
    (
        "exc",
        "aiohttp.ClientResponseError: 401, message='Unauthorized', "
        "url=URL('https://hooks.acme.io/t/?sig=⟦vQ7hP2mT9xR4kW8n⟧&sv=2021-08-06')",
    ),
    (
        "exc",
        "HTTPSConnectionPool(host='api.telegram.org', port=443): Max retries exceeded with url: "
        "/bot⟦110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw⟧/sendMessage (Caused by ConnectTimeoutError)",
    ),
    ("kwarg", {"url": "https://hooks.slack.com/services/⟦T00000000/B00000000/XXqkZsdf8923kdfXXXXXXXXX⟧"}),
    (
        "exc",
        "ConnectionError: ('Connection aborted.', RemoteDisconnected()) while GET "
        "https://svc-billing:⟦p%40ss-Wurst⟧@erp.internal:8443/export",
    ),
    ("exc", "Response 302 Set-Cookie: connect.sid=⟦s%3Aj3kQ0w9PZ2.RkT5jT0Yw7aBq⟧; Path=/; HttpOnly"),
    ("header", {"Cookie": "_ga=GA1.2.3; PHPSESSID=⟦el4ukv0kqbvoirg7nkp4dncpk3⟧; theme=dark"}),
    ("exc", "session expired; cookies={'laravel_session': '⟦eyJpdiI6Ik1nPT0iLCJ2YWx1⟧', 'locale': 'de'}"),
    ("exc", "<RequestsCookieJar[<Cookie JSESSIONID=⟦B3D5A9C7E1F02468ACE13579⟧ for crm.acme.io/>]>"),
    ("exc", "ASP.NET_SessionId=⟦lit3py55t21z5v55vlm25s55⟧ was not found in state server"),
    ("exc", "csrf check failed: X-CSRFToken ⟦Kd83jsPq0LmZx72Bv5TnRw19⟧ does not match cookie"),
    (
        "exc",
        'duplicate key value violates unique constraint "users_api_token_key"\n'
        "DETAIL:  Key (api_token)=(⟦zebra-omelette-4471⟧) already exists.",
    ),
    (
        "exc",
        'duplicate key value violates unique constraint "cred_uq"\n'
        "DETAIL:  Key (tenant_id, client_secret)=(42, ⟦purple-Walrus-77⟧) already exists.",
    ),
    (
        "exc",
        'null value in column "email" violates not-null constraint [SQL: INSERT INTO accounts (login, email, password) '
        "VALUES (%(login)s, %(email)s, %(password)s)] [parameters: {'login': 'mo', 'email': None, 'password': "
        "'⟦Tr0ub4dor&3⟧'}]",
    ),
    (
        "exc",
        "sqlite3.IntegrityError: UNIQUE constraint failed in: INSERT INTO users (name, password, age) VALUES ('ann', "
        "'⟦correct horse battery⟧', 31)",
    ),
    (
        "exc",
        "(pymysql.err.IntegrityError) (1062, \"Duplicate entry 'x' for key 'y'\") [SQL: INSERT INTO t (id, api_key) "
        "VALUES (%s, %s)] [parameters: (7, '⟦q8Zr-lemonade-11⟧')]",
    ),
    ("exc", "ProgrammingError: UPDATE customers SET passwd = '⟦Sommer2024!⟧', updated_at = now() WHERE id = 9"),
    (
        "exc",
        "syntax error at or near \"WITH\" LINE 1: ALTER USER app WITH PASSWORD '⟦gr4nit-Kiesel⟧' VALID UNTIL 'infinity'",
    ),
    ("exc", "ERROR 1396: CREATE USER 'app'@'%' IDENTIFIED BY '⟦Blau-beere-9⟧'"),
    ("exc", "Error 1045: could not open mysql dsn app:⟦kF9-quietriver⟧@tcp(db-1.internal:3306)/shop?parseTime=true"),
    ("exc", "connection failed: host=db port=5432 user=app password=⟦s3cr3t-Pfad⟧ dbname=shop sslmode=require"),
    (
        "exc",
        "pyodbc.OperationalError: DRIVER={ODBC Driver 18};SERVER=sql.acme;UID=sa;PWD={⟦Wald;Meister7⟧};Encrypt=yes",
    ),
    ("exc", "oracledb.exceptions.DatabaseError: ORA-01017 connecting scott/⟦t1ger-Lily88⟧@dbhost:1521/XEPDB1"),
    (
        "exc",
        "pymongo.errors.ConfigurationError: mongodb+srv://root:⟦n0Sql-Rocks⟧@cluster0.ab1cd.mongodb.net/?retryWrites=true",
    ),
    ("exc", "redis.exceptions.AuthenticationError: Error connecting to redis://:⟦onion-ring-303⟧@cache:6379/0"),
    ("exc", "kombu OperationalError: amqp://guest:⟦Rab-bit//hole⟧@mq:5672//: [Errno 111] Connection refused"),
    ("exc", "jdbc:postgresql://db/shop?user=app&password=⟦jdbcPw-31⟧&ssl=true is not reachable"),
    ("exc", "Server=tcp:acme.database.windows.net,1433;User ID=admin;Password=⟦Az!ure-Sky⟧;Encrypt=True failed"),
    ("exc", "AUTH failed: WRONGPASS invalid username-password pair; command was AUTH default ⟦pomelo-Drum-9⟧"),
    ("exc", 'COPY users, line 3, column password_hash: "⟦$2b$12$KIXQ4S6rXQh5f1lq2Zb0JeM5kWz8h0n6V⟧"'),
    ("exc", "Failing row contains (17, ann@x.org, null). api_secret='⟦fig-jam-2210⟧'"),
    (
        "exc",
        "1 validation error for Login\n"
        "password\n"
        "  String should have at least 12 characters [type=string_too_short, input_value='⟦k1rsche⟧', input_type=str]",
    ),
    (
        "exc",
        "2 validation errors for Settings\n"
        "db.host\n"
        "  Field required [type=missing, input_value={}, input_type=dict]\n"
        "stripe.secret_key\n"
        "  Value error, wrong prefix [type=value_error, input_value='⟦rk_wrong_8s7df6⟧', input_type=str]",
    ),
    (
        "exc",
        "jsonschema.exceptions.ValidationError: '⟦short-pw⟧' is too short\n"
        "\n"
        "Failed validating 'minLength' in schema['properties']['password']:\n"
        "    {'minLength': 12, 'type': 'string'}\n"
        "\n"
        "On instance['password']:\n"
        "    '⟦short-pw⟧'",
    ),
    ("exc", "marshmallow.exceptions.ValidationError: {'client_secret': ['Invalid value: ⟦abc-walnut-12⟧']}"),
    ("exc", "ValueError: invalid value for environment variable STRIPE_WEBHOOK_SECRET: '⟦whs-Birne-2024⟧'"),
    ("exc", "django.core.exceptions.ValidationError: {'passphrase': ['“⟦muffin-Tango⟧” is not long enough.']}"),
    ("exc", "TypeError: connect() got an unexpected value for 'password': '⟦123-kiwi-kiwi⟧'"),
    ("exc", "ValueError: secret_key must be 32 bytes, got b'⟦tooShortKey01⟧'"),
    ("exc", "Invalid PIN ⟦4821⟧ for card ending 1881"),
    ("exc", "attrs: Account(id=7, login='mo', password='⟦pläne-Schmied⟧', roles=['a'])"),
    ("exc", "Account(id=7, credentials=Credentials(user='mo', secret=SecretBytes(b'⟦geheim-Byte⟧')))"),
    ("kwarg", {"contraseña": "⟦gato-negro-19⟧", "usuario": "lola"}),
    ("kwarg", {"mot_de_passe": "⟦fromage-blanc⟧"}),
    ("kwarg", {"Passwort": "⟦Kartoffel!7⟧", "Benutzer": "udo"}),
    ("kwarg", {"senha": "⟦cafezinho22⟧"}),
    ("kwarg", {"пароль": "⟦мойкот1987⟧"}),
    ("kwarg", {"密码": "⟦xiaomao2020⟧"}),
    ("exc", "パスワード: ⟦sakura-hana9⟧ が正しくありません"),
    ("exc", "Anmeldung fehlgeschlagen: Kennwort=⟦Regenbogen_5⟧, Benutzer=ida"),
    ("exc", "wachtwoord is onjuist: wachtwoord='⟦tulp-Fiets⟧'"),
    ("kwarg", {"hasło": "⟦pierogi-z-serem⟧"}),
    ("kwarg", {"şifre": "⟦lokum-2020⟧"}),
    ("exc", "비밀번호: ⟦kimchi-jjigae⟧ 가 일치하지 않습니다"),
    ("kwarg", {"lösenord": "⟦köttbulle-9⟧", "parola_d_accesso": "x", "parola": "⟦gnocchi-3⟧"}),
    ("kwarg", {"signing_key": "⟦h8Kd02mVx7Qp⟧", "primary_key": "order_id"}),
    ("kwarg", {"encryptionKey": "⟦pV7qJ2mN8xLk4RtZ⟧"}),
    ("kwarg", {"master_key": "⟦masterblaster9⟧"}),
    ("kwarg", {"deploy_key": "⟦AAAAB3NzaC1yc2EAAAADAQ⟧"}),
    ("kwarg", {"SubscriptionKey": "⟦0f1e2d3c4b5a69788796a5b4c3d2e1f0⟧"}),
    ("kwarg", {"account-key": "⟦Eby8vdM02xNOcqFlqUwJPLlmEt==⟧"}),
    ("kwarg", {"integrationKey": "⟦e93facc04764012d7bfb002500d5d1a6⟧"}),
    ("kwarg", {"user_pwd": "⟦llama-drama⟧", "pw": "⟦yak-attack⟧"}),
    ("kwarg", {"otp": "⟦928114⟧", "mfa_code": "⟦551027⟧"}),
    ("kwarg", {"recovery_codes": ["⟦k3jd-92ms⟧", "⟦p0qx-77vn⟧"]}),
    ("kwarg", {"security_answer": "⟦Fluffy the cat⟧"}),
    ("kwarg", {"iban": "⟦DE89370400440532013000⟧"}),
    ("kwarg", {"ssn": "⟦078-05-1120⟧"}),
    ("kwarg", {"auth": ["svc-user", "⟦basil-Thyme-8⟧"]}),
    ("kwarg", {"params": [{"name": "password", "value": "⟦kv-pair-Plum⟧"}]}),
    ("kwarg", {"env": [{"key": "DB_PASSWORD", "value": "⟦helm-Chart-77⟧"}]}),
    ("kwarg", {"env": ["PATH=/usr/bin", "AWS_SECRET_ACCESS_KEY=⟦wJalrXUtnFEMI/K7MDENG/bPxRfiCYz⟧"]}),
    ("exc", "Card declined: ⟦4111.1111.1111.1111⟧ (do_not_honor)"),
    ("exc", "payment failed for pan ⟦5500 0000 0000 0004⟧ exp 12/29 cvc ⟦737⟧"),
    ("kwarg", {"card": {"number": "⟦378282246310005⟧", "cvv2": "⟦1234⟧"}}),
    ("arg", "charge ⟦6011-1111-1111-1117⟧ for 12.00 EUR"),
    ("exc", "track2 data ;⟦4000056655665556=29122010000000000⟧? invalid"),
    (
        "exc",
        "botocore.exceptions.ClientError: An error occurred (InvalidClientTokenId): credentials {'AccessKeyId': 'ASIAX', "
        "'SecretAccessKey': '⟦9drTJvcXLB89EXAMPLELB8923FB892xMFI⟧', 'SessionToken': "
        "'⟦AQoXdzELDDY//////////wEaoAK1wvxJY12r⟧'}",
    ),
    (
        "exc",
        "azure: "
        "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=⟦lJzRc1YdHaAA2KCNJJ1tkYwF/+mKK6Ygw0N==⟧;EndpointSuffix=core.windows.net",
    ),
    (
        "exc",
        "Endpoint=sb://acme.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=⟦fX8m0pQ2rT4vY6zB8dF0hJ2l=⟧",
    ),
    (
        "exc",
        'Unable to parse service account: {"type": "service_account", "private_key": "-----BEGIN PRIVATE '
        'KEY-----\\n⟦MIIEvQIBADANBgkqhkiG9w0BAQEFAASC⟧\\n-----END PRIVATE KEY-----\\n"}',
    ),
    ("exc", "stripe.error.AuthenticationError: Invalid API Key provided: ⟦sk_tst_4eC39HqLyjWDarjtT1zdp7dc⟧"),
    ("exc", "Incorrect API key provided: ⟦sk-proj-Zx81kQm29PLwo37YbnTR⟧. You can find your API key in the dashboard."),
    (
        "exc",
        "twilio.base.exceptions.TwilioRestException: auth=('AC5ef8732a3c49700934481addd5ce1659', "
        "'⟦2b0a747ca9d4f1e8b36a5c7d9e0f1a2b⟧')",
    ),
    (
        "exc",
        "GET https://maps.googleapis.com/maps/api/geocode/json?address=Ulm&key=⟦AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY⟧ "
        "403",
    ),
    (
        "exc",
        "git clone failed: fatal: Authentication failed for "
        "'https://oauth2:⟦glpat-x8s7Kd02Qm4Lz9⟧@gitlab.acme.io/a/b.git/'",
    ),
    ("exc", "npm ERR! //registry.npmjs.org/:_authToken=⟦npm_9sK2mQ7xLw4Rt8Yb⟧"),
    (
        "exc",
        "smtplib.SMTPAuthenticationError: AUTH PLAIN ⟦AGFubkBhY21lLmlvAFN0cmVuZ0dlaGVpbQ==⟧ (535, b'5.7.8 bad "
        "credentials')",
    ),
    ("exc", "ldap3: bind failed, simple bind dn=cn=admin,dc=acme password ⟦baumhaus-Lied⟧"),
    ("exc", "paramiko.ssh_exception.AuthenticationException: sshpass -p '⟦open-Sesame-5⟧' ssh root@10.0.0.4"),
    ("exc", "subprocess: mysqldump --user=root --password=⟦dumpling-42⟧ shop exited 2"),
    (
        "exc",
        "Command '['pg_dump', '--dbname', 'shop', '--password', '⟦elefant-grau⟧']' returned non-zero exit status 1.",
    ),
    ("exc", "mysql -u root -p⟦Hafer-flocke⟧ shop: exit 1"),
    ("exc", "docker login -u ci -p ⟦dckr-pat-Moos12⟧ registry.acme.io failed"),
    ("exc", "vault: permission denied, X-Vault-Token: ⟦hvs.CAESIJ8x0Kq2⟧"),
    (
        "exc",
        "jwt.exceptions.InvalidSignatureError: eyJhbGciOiJIUzI1NiJ9.⟦eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N⟧",
    ),
    ("exc", 'config error near <add key="ApiSecret" value="⟦xml-attr-Mango⟧" />'),
    (
        "exc",
        'SOAP fault: <wsse:Username>svc</wsse:Username><wsse:Password Type="#PasswordText">⟦soap-Opera-4⟧</wsse:Password>',
    ),
    ("exc", "bad yaml: \n  database:\n    user: app\n    password: ⟦yaml-Llama-8⟧\n    host: db"),
    ("exc", 'could not parse body b\'{"user":"mo","password":"⟦bytes-Json-5⟧"}\''),
    ("exc", 'could not parse body "{\\"login\\": \\"mo\\", \\"secret\\": \\"⟦esc-Json-6⟧\\"}"'),
    ("exc", "payload grant_type=password&username=mo&password=⟦form%2DUrl%2D7⟧&scope=all rejected"),
    ("exc", 'multipart: Content-Disposition: form-data; name="password"\r\n\r\n⟦multi-Part-8⟧\r\n--b7'),
    ("exc", "parse failed: [('username', 'mo'), ('password', '⟦tuple-List-9⟧')]"),
    ("exc", 'export DATABASE_PASSWORD="⟦shell-Expo-10⟧"; ./run.sh: exit 3'),
    ("exc", 'Hash {:user=>"mo", :password=>"⟦ruby-Rock-11⟧"} is not allowed'),
    ("exc", 'php: array(2) { ["password"]=> string(11) "⟦php-Dump-12⟧" }'),
    ("exc", "struct {User:mo Password:⟦go-Struct-13⟧ Port:22}"),
    ("exc", "the password is ⟦plain-Talk-14⟧ but should be rotated"),
    ("exc", "password (⟦paren-Val-15⟧) rejected by policy"),
    (
        "exc",
        "reset link https://acme.io/reset/⟦c4k9x2-7f0e1d2c3b4a59687766554433221100⟧/ could not be sent: token used",
    ),
    ("chain", "KeyError: 'refresh_token' -> {'access_token': '⟦ya29.A0ARrdaM-short⟧', 'expires_in': 3599}"),
    ("chain", "gRPC UNAUTHENTICATED metadata=(('x-api-key', '⟦grpc-Meta-16⟧'), ('user-agent', 'x'))"),
    ("chain", "login(mo, password=⟦call-Arg-17⟧) raised Timeout"),
    ("arg", "Bearer ⟦mF_9.B5f-4.1JqM⟧"),
    ("arg", {"credentials": {"a": "⟦nested-Cred-18⟧", "b": ["⟦nested-Cred-19⟧"]}}),
]

FURTHER = [
    "Authorization: AWS AKIAxx:⟦frJIUN8DYpKDtOLCwo=⟧ mismatch",
    "headers={'Authorization': 'MyScheme ⟦abc-def-ghi⟧'}",
    "Authorization=Zoho-oauthtoken ⟦1000.8cb99dxxxx.9be93⟧",
    "X-Shopify-Access-Token: ⟦plain-shop-88⟧",
    "-H 'Authorization: ApiKey-v1 ⟦sekret-thing-1⟧' https://x",
    "Authorization: ⟦rawtokenvalue-77⟧",
    "DETAIL:  Key (lower(api_token::text))=(⟦walrus-77x⟧) already exists.",
    "Key (email, password)=(a@b.c, ⟦hun, ter9⟧) already exists",
    "INSERT INTO users (id, password) VALUES (1, '⟦pw-one-1⟧'), (2, '⟦pw-two-2⟧') ON CONFLICT DO NOTHING",
    'INSERT INTO "users" ("id", "secret") VALUES ($1, $2) DETAIL:  parameters: $1 = \'1\', $2 = \'⟦pg-param-3⟧\'',
    "[SQL: UPDATE users SET name=?, password=? WHERE id=?] [parameters: ('mo', '⟦upd-param-4⟧', 7)]",
    "[SQL: INSERT INTO users (name, token) VALUES (?, ?)] [parameters: [('mo', '⟦many-one-5⟧'), ('al', "
    "'⟦many-two-6⟧')]]",
    "sql: REPLACE INTO t(id,pwd)VALUES(1,'⟦repl-pw-7⟧')",
    "ValidationError: [{'type': 'string_too_short', 'loc': ('body', 'password'), 'msg': 'x', 'input': '⟦k1rsch⟧'}]",
    '{"detail":[{"type":"string_too_short","loc":["body","password"],"msg":"too '
    'short","input":"⟦kurz1⟧","ctx":{"min_length":8}}]}',
    "Field error in object 'user' on field 'password': rejected value [⟦spring-8⟧]; codes",
    "1 validation error for S\n"
    "api_key\n"
    "  Input should be a valid integer, unable to parse string as an integer [type=int_parsing, "
    "input_value='⟦not-int-9⟧', input_type=str]\n"
    "    For further information visit https://errors.pydantic.dev",
    "dial failed: user:⟦pw12⟧@tcp(db)",
    "dsn root:⟦topf⟧@unix(/var/run/mysqld.sock)/shop",
    "could not connect to admin:⟦S3cure!⟧@10.0.0.5:27017",
    "ftp login bob:⟦b0bspw1⟧@files.acme.io/incoming",
    "PHPSESSID=⟦el4ukv0kqbvoirg7nkp4dncpk3⟧; path=/",
    "cookies: laravel_session=⟦eyJpdiI6IlZ6eTk1⟧",
    "connect.sid=⟦s%3AK0Q9b7ABCDEFGH2jkl⟧",
    "invalid cookie sessionid=⟦b8k2m5p9⟧",
    "_shop_session=⟦c1ab99ef00aa⟧ is stale",
    "card 4111.1111.1111.⟦1111⟧",
    "card 4111\xa01111\xa01111\xa0⟦1111⟧",
    "card number: 3782.822463.⟦10005⟧",
    "Geheimnis: ⟦streng-9⟧",
    "clave: ⟦perro-8⟧",
    "{'clave': '⟦perro-9⟧'}",
    "hasło=⟦kot-5x⟧",
    "ПАРОЛЬ: ⟦мойпёс9⟧",
    "Şifre: ⟦kedi-44⟧",
    "密码是：⟦mima123⟧",
    "mot de passe : ⟦chat-noir⟧",
    "kata sandi: ⟦rahasia7⟧",
    "mật khẩu: ⟦meocon9⟧",
    "jelszó='⟦macska-1⟧'",
    "Lösenord: ⟦katt-123⟧",
    "{'tenantKey': '⟦Qz81xVbn27KmTp4R⟧'}",
    "{'WriteKey': '⟦aB3dE5gH7jK9mN1p⟧'}",
    "{'license_key': '⟦ABCD-EFGH-IJKL⟧'}",
    "passwords=['⟦list-pw-1⟧', '⟦list-pw-2⟧']",
    "user[password]=⟦rails-form-1⟧&commit=ok",
    "user%5Bpassword%5D=⟦rails-form-2⟧&x=1",
    'params[:password] = "⟦ruby-set-3⟧"',
    "config['db']['password'] = '⟦py-set-4⟧'",
    'os.environ["API_SECRET"]="⟦env-set-5⟧"',
    "setPassword('⟦setter-6⟧')",
    "client.login('mo', password='⟦kw-7⟧')",
    'set_password("⟦setter-8⟧")',
    "Password => ⟦arrow-9⟧",
    "password -> ⟦thin-arrow-1⟧",
    "password := ⟦walrus-1⟧",
    "password|⟦pipe-2x⟧",
    "<password>⟦elem-3⟧</password>",
    "<Param name='password'>⟦elem-4⟧</Param>",
    '"password","⟦csv-5⟧"',
    "password\t⟦tab-6x⟧",
    "| password | ⟦cell-7x⟧ |",
    "password.....: ⟦dots-8x⟧",
    "Password for mo: ⟦prompt-9⟧",
    "pass: ⟦yaml-10⟧\nuser: x",
    "passwd ⟦plain-11⟧",
    "tried password ⟦Hunter22⟧ for root",
    "using token ⟦a8f5f167f44f4964e6c998dee827110c⟧",
    'token "⟦abc123def456ghi789⟧" is expired',
    "API token ⟦9f8e7d6c5b4a39281706⟧ revoked",
    "the secret key ⟦wJalrXUtnFEMI7MDENG⟧ is wrong",
    "Invalid access token: ⟦ya_short_77⟧",
    "invalid_grant: refresh token ⟦1.AXkAd83Kslw_77⟧ expired",
    "b'password=⟦bytes-1⟧&x'",
    "SecretStr('⟦wrapped-2⟧')",
    "Credentials[user=mo, password=⟦java-5⟧]",
    "LoginRequest(user=mo, password=⟦kotlin-6⟧)",
    '%{password: "⟦elixir-7⟧"}',
    '{:password "⟦clojure-8⟧"}',
    "Password:⟦go-9x⟧}",
    "net.connect --api-key ⟦flag-10⟧",
    "--api-key=⟦flag-11⟧",
    "['--token', '⟦flag-12⟧']",
    "/p:Password=⟦msbuild-13⟧",
    "-Dspring.datasource.password=⟦jvm-14⟧",
    "PGPASSWORD=⟦env-15⟧ psql",
    "sshpass -p⟦ssh-16⟧ ssh",
    "docker login --password ⟦dk-18⟧",
    "machine api.acme.io login mo password ⟦netrc-1⟧",
    "AUTH LOGIN ⟦bW8tc2VjcmV0⟧",
    "redis-cli -a ⟦rediscli-4⟧ ping",
    "openssl -passin pass:⟦openssl-5⟧",
    "psql postgres://mo:⟦url-6⟧@db",
    "s3://AKIA:⟦secret-7⟧@bucket",
    "snowflake://mo:⟦snow-8⟧@acct/db",
    "{'user': 'mo', 'pass': '⟦dict-9⟧'}",
    'sasl.jaas.config=PlainLoginModule required username="mo" password="⟦kafka-1⟧";',
    "SharedAccessSignature sr=x&sig=⟦azsig-22⟧&se=1",
    "client_assertion=⟦eyJassert.x.y1⟧",
    "X-Amz-Security-Token=⟦FwoGZXIvYXdzE⟧&X",
    "code_verifier=⟦verif-33x⟧",
    "otp=⟦123456⟧",
    "Your verification code is ⟦482910⟧",
    "one-time code: ⟦482911⟧",
    "2FA code ⟦482912⟧ wrong",
    "CVV: ⟦123⟧",
    "pin=⟦9911⟧",
    "AccountKey ⟦Eby8vdM02xNOcqFlqUwJ⟧",
    "x-api-key ⟦abc-def-123-hhh⟧",
    "ssn 078-05-⟦1120⟧",
    "IBAN DE89 3704 0044 0532 0130 ⟦00⟧",
    "HTTPBasicAuth('mo', '⟦req-auth-2⟧')",
    "BasicAuth(login='mo', password='⟦aio-3⟧', encoding='latin1')",
    "auth=aiohttp.BasicAuth('mo', '⟦aio-4⟧')",
]

_MARKED = re.compile("⟦(.*?)⟧", re.DOTALL)


def unmarked(value: Any) -> Any:
    """The value as it stands in a job."""
    if isinstance(value, str):
        return _MARKED.sub(r"\1", value)
    if isinstance(value, dict):
        return {name: unmarked(inner) for name, inner in value.items()}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value


def secrets_in(value: Any) -> list[str]:
    """The text that must not be read of a value."""
    if isinstance(value, str):
        return _MARKED.findall(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [secret for one in inner for secret in secrets_in(one)]


_TEXTS = [
    "KeyError: 'primary_key'",
    "KeyError: 'sort_key' for item {n}",
    "cache_key={task}:{n} missing, recomputing",
    "cache_key='user:{n}:v2' not found in region default",
    "partition_key={city} sort_key={n}",
    'IntegrityError: duplicate key value violates unique constraint "orders_pkey" DETAIL:  Key (id)=({n}) already '
    "exists.",
    'duplicate key value violates unique constraint "orders_number_key" DETAIL:  Key (order_number)=(ORD-{n}) already '
    "exists.",
    "DETAIL:  Key (tenant_id, sku)=({n}, SKU-{n}-XL) already exists.",
    'Key (author_id)=({n}) is not present in table "authors".',
    'insert or update on table "books" violates foreign key constraint "books_author_id_fkey"',
    "INSERT INTO orders (id, author, total) VALUES ({n}, '{name}', 12.50)",
    "[SQL: INSERT INTO orders (id, sort_key, status) VALUES (%s, %s, %s)] [parameters: ({n}, 'b-{n}', 'open')]",
    "UPDATE authors SET name = '{name}', updated_at = now() WHERE id = {n}",
    "SELECT id, author FROM books WHERE isbn = '978-3-16-148410-{d}'",
    "tokenize: unexpected indent at line {n}",
    "tokenizer.model_max_length={n} exceeded",
    "max_tokens={n} is above the limit",
    "prompt_tokens={n} completion_tokens={n}",
    "monkey patched module gevent at {n}",
    "the monkey {name} ate {n} bananas",
    "author: {name} <{name}@example.org>",
    "author={name} commit={sha}",
    "authored by {name} on 2024-05-{dd}",
    "commit {sha} not found in origin/main",
    "image sha256:{sha256} not found: manifest unknown",
    "docker pull registry.acme.io/shop@sha256:{sha256}",
    "order {n} of customer {uuid} could not be shipped",
    "Order ORD-{n}-{d} not found",
    "Task shop.tasks.ship[{uuid}] raised unexpected: ValueError()",
    "job {uuid} exceeded its time limit of {n} s",
    "ConnectionError: HTTPSConnectionPool(host='api.acme.io', port=443): Max retries exceeded with url: "
    "/v1/orders/{n}?page={d}&sort_key=created (Caused by ReadTimeoutError)",
    "404 Client Error: Not Found for url: https://api.acme.io/v1/customers/{uuid}/invoices?limit={n}",
    "502 Server Error: Bad Gateway for url: https://{name}.acme.io/hook?id={n}&event=paid",
    "HTTP 429 Too Many Requests: retry-after={d}, x-ratelimit-remaining=0, x-request-id={uuid}",
    "request_id={uuid} trace_id={sha16}",
    "traceparent: 00-{sha32}-{sha16}-01",
    'ETag "{sha32}" does not match',
    'could not connect to server: Connection refused Is the server running on host "10.0.{d}.{d}" and accepting TCP/IP '
    "connections on port 5432?",
    'psycopg.OperationalError: connection failed: connection to server at "10.0.{d}.{d}", port 5432 failed: server '
    "closed the connection unexpectedly",
    "OperationalError: (2003, \"Can't connect to MySQL server on 'db-{d}.internal:3306' (111)\")",
    "redis.exceptions.ConnectionError: Error {n} connecting to redis-{d}:6379. Connection refused.",
    "amqp.exceptions.NotFound: Queue.declare: (404) NOT_FOUND - no queue '{task}' in vhost '/'",
    'FATAL:  password authentication failed for user "{name}"',
    "django.core.exceptions.ImproperlyConfigured: The SECRET_KEY setting must not be empty.",
    "Invalid password",
    "Password must be at least {n} characters long",
    "password is required",
    "password: This field is required.",
    "{{'password': ['This field is required.']}}",
    "{{'token': ['This field may not be blank.']}}",
    "token expired at 2024-05-{dd}T10:00:00Z",
    "token is invalid or expired",
    "Invalid token",
    "CSRF token missing",
    "Unexpected token < in JSON at position {n}",
    'SyntaxError: Unexpected token \'}}\', "{{"a": 1}}" is not valid JSON',
    "unexpected token: identifier at line {n}",
    "Access token has expired, refresh required after {n} s",
    "authentication failed after {n} tries",
    "Authorization failed for user {name}",
    "authorization: denied by policy {n}",
    "no Authorization header in request {uuid}",
    "secret not found: {name}-secret",
    'secret "{name}-tls" not found in namespace default',
    "pin code must have {d} digits",
    "pinned version {d}.{d}.{d} is not available",
    "card was declined: insufficient_funds (charge ch_{n})",
    "card ending {d4} expired",
    "credit card number is invalid",
    "phone +49 30 {d7} unreachable",
    "call from +1 (555) 0{d2}-{d4} dropped",
    "phone=+4915{d8}",
    "SMS to 0049{d2}{d8} failed: unknown subscriber",
    "tracking number 1Z{n}AA{n} unknown to carrier",
    "parcel 00340434{d8}{d4} is lost",
    "invoice RE-2024-{n} has total {n}.{d2} EUR",
    "IMEI {d8}{d7} not registered",
    "EAN 40{d8}{d3} unknown",
    "timestamp {ts} is in the past",
    "epoch_ms={ts}{d3} drift {n} ms",
    "snowflake id 1{ts}{d8}",
    "ValueError: invalid literal for int() with base 10: 'abc{n}'",
    "ValueError: time data '2024-05-{dd}' does not match format '%d.%m.%Y'",
    "TypeError: ship() got an unexpected keyword argument 'sort_key'",
    "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    "AttributeError: 'NoneType' object has no attribute 'author'",
    "KeyError: 'token'",
    "KeyError: 'password'",
    "KeyError: 'api_key'",
    "IndexError: list index out of range at position {n}",
    "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe4 in position {n}: invalid continuation byte",
    "ZeroDivisionError: division by zero",
    "FileNotFoundError: [Errno 2] No such file or directory: '/srv/app/exports/{n}/{uuid}.csv'",
    "PermissionError: [Errno 13] Permission denied: '/var/run/secrets/kubernetes.io/serviceaccount'",
    "MemoryError: Unable to allocate {n} MiB for an array with shape ({n}, {d}) and data type float64",
    "subprocess.CalledProcessError: Command '['ffmpeg', '-i', '/tmp/{uuid}.mov', '-b:v', '{n}k']' returned non-zero "
    "exit status 1.",
    "Command '['pg_dump', '--dbname', 'shop', '-p', '5432']' returned non-zero exit status {d}.",
    "Command '['mkdir', '-p', '/srv/{n}']' returned non-zero exit status 1.",
    "docker run -p 8080:80 -u 1000:1000 acme/{name} failed",
    "ssh -p 22{d2} deploy@10.0.0.{d} exited 255",
    "tar -xzpf backup-{n}.tgz: unexpected end of file",
    "botocore.exceptions.ClientError: An error occurred (NoSuchKey) when calling the GetObject operation: The specified "
    "key does not exist.",
    "NoSuchKey: key=exports/{n}/{uuid}.parquet bucket=acme-data",
    "s3 key: invoices/2024/{n}.pdf",
    "s3_key=invoices/2024/{n}.pdf",
    "object_key='{uuid}/{n}.png'",
    "routing_key={task} exchange=celery",
    "routing_key='{task}.{name}' unroutable",
    "idempotency_key={uuid} was used with other parameters",
    "foreign_key=author_id missing on books",
    "unique_key=order_number",
    "key={n} not in shard map",
    "key 'status' is missing",
    "hot_key user:{n} throttled",
    "public_key fingerprint mismatch",
    "sort_keys={d}",
    "keys=['a', 'b', 'c{n}']",
    "keyboard layout {name} unknown",
    "keyspace shop{n} does not exist",
    "monkeytype: {n} words",
    "turkey: city {city} not served",
    "jockey_id={n}",
    "donkey={name}",
    "hockey_team={city}",
    "keyword 'author' in line {n}",
    "keyframe={n} dropped",
    "session_id column is missing",
    "session_count={n}",
    "session {n} had {d} errors",
    "passenger={name} seat={d}A",
    "passed={n} failed={d}",
    "passport office {city} is closed",
    "bypass=true reason={name}",
    "compass heading {n}",
    "surpassed limit {n}",
    "secretary={name} room={n}",
    "secretariat: {city}",
    "pinned=true version={d}",
    "pinboard {n}",
    "spinner={d}",
    "shipping={n}",
    "opinion: {name} disagrees",
    "authority={city} returned {n}",
    "authors=[{n}, {d}]",
    "authentic copy {n}",
    "authorized=true for {name}",
    "authentication_method=ldap",
    "auth_type=basic",
    "token_type=bearer expires_in={n}",
    "token_count={n}",
    "tokens_used={n} of {n}",
    "password_policy=strict",
    "password_changed_at=2024-05-{dd}",
    "password_length={n}",
    "has_password=True",
    "secret_name={name}-db",
    "secret_version={d}",
    "credential_type=service_account",
    "credit={n}.{d2}",
    "credits={n}",
    "creditor={name}",
    "accredited={city}",
    "cookie_consent=true",
    "cookies are disabled",
    "certificate has expired (_ssl.c:{n})",
    "certificate verify failed: unable to get local issuer certificate",
    "ssl.SSLError: [SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:{n})",
    "1 validation error for Order",
    "total",
    "  Input should be a valid number [type=float_type, input_value='{name}', input_type=str]",
    "2 validation errors for Book",
    "author",
    "  Field required [type=missing, input_value={{'id': {n}}}, input_type=dict]",
    "sort_key",
    "  Input should be a valid string [type=string_type, input_value={n}, input_type=int]",
    "1 validation error for Login",
    "password",
    "  Field required [type=missing, input_value={{'login': '{name}'}}, input_type=dict]",
    "jsonschema.exceptions.ValidationError: '{name}' is not of type 'integer'",
    "Order(id={n}, author='{name}', key='o-{n}', total=12.5)",
    "<Order: Order object ({n})>",
    "<Response [503]>",
    "<AsyncResult: {uuid}>",
    "{{'id': {n}, 'author': '{name}', 'sort_key': 'b{n}', 'cache_key': 'k:{n}'}}",
    '{{"order": {n}, "customer": "{uuid}", "city": "{city}", "key": "status"}}',
    "[('id', {n}), ('author', '{name}'), ('key', 'total')]",
    "params=({n}, '{name}', '{city}')",
    "user:{n}@shard{d}",
    "mail to {name}@{city}.example.org bounced: 550 user unknown",
    "http://{name}.acme.io:8080/path@{n}/x",
    "git@github.com:acme/{name}.git does not exist",
    "https://github.com/acme/{name}@{sha}",
    "npm ERR! 404 '@acme/{name}@{d}.{d}.{d}' is not in this registry",
    "time 10:{d2}:{d2}@{city}",
    "app:{name}@tcp listener closed",
    "ratio {n}/{n}@{d}x",
    "worker celery@{name}-{d} lost",
    "celery@{name}-{d}.{city}.internal sent no heartbeat",
    'File "/srv/app/shop/tasks.py", line {n}, in ship',
    '  File "/usr/lib/python3.12/site-packages/requests/adapters.py", line {n}, in send',
    "    raise ConnectionError(e, request=request)",
    "    return self.cache[cache_key]",
    "    obj = self.model.objects.get(pk=primary_key)",
    "    token = next(self.tokens)",
    "    for key, value in items.items():",
    "    if password is None:",
    "    raise KeyError(key)",
    '    sort_key = operator.attrgetter("author")',
    "Version {d}.{d}.{d}+{sha7} is yanked",
    "build {sha7} failed after {n} s",
    "blob {sha} is too large",
    "checksum mismatch: expected {sha256} got {sha256}",
    "md5={sha32} size={n}",
    "sha1={sha}",
    "hash={sha32} bucket={d}",
    "digest: {sha256}",
    "signature_version=s3v4",
    "signature mismatch for {task}",
    "the signature of {task}() has changed",
    "coordinates {d}.{d8}, {d2}.{d8}",
    "ISBN 978-3-{d8}-{d}",
    "IP 2001:db8:{d4}::{d4} blocked",
    "MAC 00:1A:{d2}:{d2}:FF:{d2} unknown",
    "uuid={uuid}",
    "lease {uuid} expired, holder {name}",
    "data:image/png;base64,iVBORw0KGgo= could not be decoded",
    "Content-Type: text/html; charset=utf-8",
    'Content-Disposition: form-data; name="file"; filename="{name}.csv"',
    "X-Request-Id: {uuid}",
    "User-Agent: celery/{d}.{d}",
    "content-length={n}",
    "The answer was: {city}",
    "Das Passwort ist abgelaufen",
    "contraseña incorrecta",
    "mot de passe incorrect",
    "Пароль неверный",
    "密码错误",
    "clave primaria {n} duplicada",
    "Schlüssel {n} doppelt",
    "clé primaire {n} en double",
    "Kennzeichen {city} {n} ungültig",
    "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' -- {n}",
    "deadlock detected DETAIL:  Process {n} waits for ShareLock on transaction {n}; blocked by process {n}.",
    "could not serialize access due to concurrent update (order {n})",
    "canceling statement due to statement timeout after {n} ms",
    "Lock wait timeout exceeded; try restarting transaction ({n})",
    "Data too long for column 'author' at row {n}",
    'null value in column "author" of relation "books" violates not-null constraint DETAIL:  Failing row contains ({n}, '
    "null, {city}).",
    "Unknown column 'sort_key' in 'field list'",
    'column "token" does not exist LINE 1: SELECT token FROM t{n}',
    'relation "auth_user" does not exist',
    "permission denied for table secrets",
    "rate limit: {n} tokens per min. Limit {n}, used {n}",
    "This model's maximum context length is {n} tokens, however you requested {n} tokens",
    "stripe.error.CardError: Your card was declined. request_id=req_{sha16}",
    "payment pi_{sha16} has status requires_action",
    "customer cus_{sha16} has no default source",
    "charge {n}.{d2} EUR for order {n} refused by bank code {d4}",
    "amount=411{d4} currency=EUR",
    "balance 4{d3}.{d2} below threshold {n}",
    "4 1 1 1 rows of {n} skipped",
    "progress 1111 2222 of {n}",
    "price list 2024-05-{dd} 1200.00 1300.50 1400.75 {n}.{d2}",
    "numbers {d4} {d4} {d4} lost",
]

_NAMES = [
    "primary_key",
    "sort_key",
    "cache_key",
    "partition_key",
    "object_key",
    "s3_key",
    "routing_key",
    "idempotency_key",
    "key",
    "keys",
    "keyword",
    "monkey",
    "author",
    "authors",
    "tokenizer",
    "token_count",
    "max_tokens",
    "token_type",
    "session_count",
    "passenger",
    "passed",
    "bypass",
    "pinned",
    "shipping",
    "spinner",
    "secretary",
    "credit",
    "credits",
    "creditor",
    "order_id",
    "customer_id",
    "invoice",
    "phone",
    "city",
    "status",
    "sha",
    "commit",
    "etag",
    "trace_id",
    "span_id",
    "request_id",
    "uuid",
    "locale",
    "timezone",
    "page",
    "limit",
    "sku",
    "ean",
    "isbn",
    "total",
    "amount",
    "currency",
    "hash",
    "checksum",
    "digest",
    "foreign_key",
    "unique_key",
    "group_key",
    "lookup_key",
    "dict_key",
    "row_key",
    "hash_key",
    "range_key",
    "natural_key",
    "join_key",
    "translation_key",
    "message_key",
    "i18n_key",
    "keyspace",
    "hotkey",
    "public_key_id",
    "auth_type",
    "authority",
    "authenticated",
    "authorized_at",
    "password_changed_at",
    "has_password",
    "reset_password_sent",
    "pin_count",
    "opinion",
    "address",
    "description",
    "comment",
    "event",
]
_VALUES = ["{n}", "{uuid}", "{name}", "{sha}", "ORD-{n}", "{city}", "{task}", "2024-05-{dd}", "{sha32}"]
_WORDS = {
    "name": ["mia", "noah", "emil", "lena", "karl", "ida", "otto", "emma", "paul", "rosa"],
    "city": ["Ulm", "Köln", "Bern", "Graz", "Linz", "Jena", "Kiel", "Bonn", "Trier", "Gera"],
    "task": ["shop.tasks.ship", "billing.tasks.charge", "mail.tasks.send", "sync.tasks.pull"],
}


class _Filling(dict[str, str]):
    """The variables of a template: numbers, hashes, ids and names, drawn."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def __missing__(self, name: str) -> str:
        random = self._random
        if name in _WORDS:
            return random.choice(_WORDS[name])
        if name == "uuid":
            return str(UUID(int=random.getrandbits(128), version=4))
        if name.startswith("sha"):
            return hashlib.sha256(str(random.random()).encode()).hexdigest()[
                : int(name[3:] or 40) if name != "sha256" else 64
            ]
        if name == "dd":
            return f"{random.randrange(1, 29):02}"
        if name == "ts":
            return str(1_700_000_000 + random.randrange(60_000_000))
        if name == "n":
            return str(random.randrange(10, 10 ** random.randrange(2, 8)))
        return "".join(random.choice(string.digits) for _ in range(int(name[1:] or 1)))


def clean(count: int, seed: int = 1) -> list[str | dict[str, Any]]:
    """`n` texts and mappings without a secret."""
    random = Random(seed)
    filling = _Filling(random)

    def filled(template: str) -> str:
        return string.Formatter().vformat(template, (), filling).replace("\\n", "\n")

    def value(name: str) -> Any:
        if name.startswith(("has_", "reset_", "authentic")):
            return random.choice([True, False])
        return random.randrange(9_999) if name.endswith(("count", "tokens")) else filled(random.choice(_VALUES))

    return [
        filled(random.choice(_TEXTS))
        if random.random() < 0.8
        else {name: value(name) for name in random.sample(_NAMES, 4)}
        for _ in range(count)
    ]
