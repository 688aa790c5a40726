"""The API under `/api/`: the same services as the pages, for programs. JSON, `Authorization: Bearer TOKEN`.

The token alone says who calls: no session is looked at, so no foreign page can act through a browser's cookies, and
no CSRF token is asked for.
"""
