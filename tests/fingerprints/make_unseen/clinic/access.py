import jwt
import requests
from cryptography.fernet import Fernet
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials


class TokenRefused(Exception):
    pass


def whoami(token, key, audience):
    return jwt.decode(token, key, algorithms=["HS256"], audience=audience, options={"require": ["exp", "sub"]})


def signed_in(token, key, audience):
    try:
        return whoami(token, key, audience)
    except jwt.InvalidTokenError as error:
        raise TokenRefused("token of %s refused" % audience) from error


def read_note(key, token):
    return Fernet(key).decrypt(token.encode())


def read_letter(key, token):
    return Fernet(key).decrypt(token.encode()).decode()


def calendar(port, account):
    known = Credentials(None, refresh_token="r-" + account, token_uri=f"http://127.0.0.1:{port}/token", client_id="clinic", client_secret="s")
    known.refresh(Request())


def insurer(host, port, ca, policy):
    return requests.get(f"https://{host}:{port}/policies/{policy}", verify=ca, timeout=3)
