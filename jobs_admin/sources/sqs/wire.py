"""Calls to SQS with timeouts, without retries by the SDK, and with errors as sentences without credentials.

A retried SendMessage would send a second message, so each call is made once and the caller decides about a retry.
"""

from __future__ import annotations

import threading
from os import getpid
from typing import Any

from jobs_admin.installation import IS_CHECKOUT
from jobs_admin.sources.base import SourceRefused, SourceUnreachable

CONNECT_S, ANSWER_S = 2.0, 4.0  # includes 1 s of long polling
_CONNECTIONS = 16
_INSTALL = (
    "python3 -m pip --python .venv/bin/python install -r requirements-sqs.txt"
    if IS_CHECKOUT
    else "pip install 'redrive[sqs]'"
)

_MISSING = {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NonExistentQueue"}
_LOGIN = {
    "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "InvalidSecurity",
    "UnrecognizedClientException", "IncompleteSignature", "InvalidSignatureException",
    "RequestExpired", "MissingAuthenticationToken", "InvalidAccessKeyId",
}  # fmt: skip
_NO_LOGIN = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound", "TokenRetrievalError",
    "UnauthorizedSSOTokenError", "SSOTokenLoadError",
}  # fmt: skip
# Errors that the SDK raises before it sends a request: SQS did nothing.
_BEFORE_SENDING = {
    "ConnectTimeoutError", "EndpointConnectionError", "NoCredentialsError", "PartialCredentialsError", "NoRegionError",
    "ParamValidationError", "ProxyConnectionError", "CredentialRetrievalError", "TokenRetrievalError", "ProfileNotFound",
    "UnauthorizedSSOTokenError", "SSOTokenLoadError", "InvalidRegionError", "UnknownServiceError", "DataNotFoundError",
}  # fmt: skip


class NoSuchQueue(SourceRefused):
    """The queue does not exist, or was deleted."""


class Denied(SourceRefused):
    """The credentials do not allow the call."""


class Wire:
    """Client of one region. Safe for threads and forked processes."""

    def __init__(self, name: str, region: str, endpoint_url: str) -> None:
        """Opens no connection, and does not import the SDK yet."""
        self._name, self._region, self._endpoint_url = name, region, endpoint_url
        host = endpoint_url.partition("://")[2].partition("/")[0]
        self.where = f"SQS at {host}" if host else f"SQS in {region or 'the default region'}"
        self._lock = threading.Lock()
        self._client: Any = None
        self._pid = 0

    def call(self, operation: str, **given: Any) -> dict[str, Any]:
        """Call an operation of SQS.

        Raises NoSuchQueue, Denied, SourceRefused or SourceUnreachable, caused by the SDK's error.
        """
        client = self._open()
        try:
            answer: dict[str, Any] = getattr(client, operation)(**given)
            return answer
        except Exception as error:
            if _code(error) in _LOGIN or type(error).__name__ in _NO_LOGIN:
                with self._lock:
                    if self._client is client:
                        self._client = None  # a new client reads the credentials again
            raise self._error(operation, error) from error

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._pid == getpid():
            client.close()

    def _open(self) -> Any:
        with self._lock:
            if self._client is None or self._pid != getpid():  # forked: the connections are the parent process's
                self._client, self._pid = self._connect(), getpid()
            return self._client

    def _connect(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ModuleNotFoundError as error:
            raise SourceUnreachable(f"Source {self._name}: boto3 is not installed: run `{_INSTALL}`.") from error
        config = Config(
            connect_timeout=CONNECT_S,
            read_timeout=ANSWER_S,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=_CONNECTIONS,
        )
        try:
            return boto3.session.Session().client(
                "sqs", region_name=self._region or None, endpoint_url=self._endpoint_url or None, config=config
            )
        except Exception as error:  # a missing profile or region, or an unreadable file
            raise self._error("connect", error) from error

    def _error(self, operation: str, error: Exception) -> SourceUnreachable | SourceRefused:
        response = getattr(error, "response", None)
        if type(error).__name__ == "ParamValidationError":
            return SourceRefused(f"{self.where}: the SDK refused {operation}. Nothing was sent.")
        if not isinstance(response, dict):
            return SourceUnreachable(f"{self.where} {_why_no_answer(type(error).__name__)}")
        code = _code(error)
        name = "".join(part.capitalize() for part in operation.removesuffix("_batch").split("_"))  # as in an IAM policy
        if code in _MISSING:
            return NoSuchQueue(f"{self.where} has no such queue.")
        if "AccessDenied" in code or code == "AuthorizationError":
            action = "kms:Decrypt and kms:GenerateDataKey" if "kms" in code.lower() else f"sqs:{name}"
            return Denied(f"{self.where} does not allow {action} ({code}). Allow it in the policy of Redrive's role.")
        if code in _LOGIN:
            return SourceUnreachable(f"{self.where} refused the credentials ({code}).")
        if "Throttl" in code or code in ("OverLimit", "TooManyRequestsException", "RequestLimitExceeded"):
            return SourceUnreachable(f"{self.where} throttles requests ({code}). Redrive will retry.")
        if _status(response) >= 500:
            return SourceUnreachable(f"{self.where} failed ({code or _status(response)}).")
        return SourceRefused(f"{self.where} refused {name} ({code or _status(response)}).")


def _why_no_answer(kind: str) -> str:
    if kind in _NO_LOGIN:
        return f"cannot be used: this process finds no AWS credentials ({kind}). Set a role, a profile or AWS_ACCESS_KEY_ID."
    if kind == "NoRegionError":
        return 'cannot be used: no region is set. Add it to the URL, such as "sqs://eu-west-1".'
    if kind == "ReadTimeoutError":
        return f"did not answer within {ANSWER_S:g} s."
    return f"cannot be reached ({kind})."


def _code(error: Exception) -> str:
    """Return the error code of SQS; "" if SQS did not answer."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", ""))[:100] if isinstance(response, dict) else ""


def _status(response: dict[str, Any]) -> int:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else 500


def is_surely_unsent(error: BaseException | None) -> bool:
    """Return whether the SDK's error proves that SQS sent nothing: it refused the request, or did not receive it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return _status(response) < 500
    return type(error).__name__ in _BEFORE_SENDING
