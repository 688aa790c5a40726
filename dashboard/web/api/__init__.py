"""The API under `/api/`: the services of the pages for programs, as JSON, with `Authorization: Bearer TOKEN`.

Only the token identifies the caller. Sessions are ignored, so a foreign page cannot act through a browser's cookies and
no CSRF token is needed.
"""
