import os
from importlib.util import find_spec
from pathlib import Path

IS_MOUNTED = os.environ.get("FOREIGN") == "mounted"
WHERE = os.environ.get("FOREIGN_AT", "ops/redrive/")
FOLDER = Path(os.environ["FOREIGN_FOLDER"])

SECRET_KEY = "the house's own key, which is long enough: 7d1c09d20f6b4a2f8a55"
DEBUG = False
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
FORCE_SCRIPT_NAME = os.environ.get("FOREIGN_PREFIX") or None

INSTALLED_APPS = [
    "house.apps.HouseConfig",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    *(name for name in ("django_tasks", "django_tasks_db") if find_spec(name)),
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "house.middleware.signature",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "house.middleware.in_lisbon",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "house.urls"
# What is not there is shown, which would be seen on pages of Redrive.
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "string_if_invalid": "INVALID",
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "house.sqlite3",
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"

AUTH_USER_MODEL = "dashboard.Person"
LOGIN_URL = "enter"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SESSION_ENGINE = "django.contrib.sessions.backends.cached_db"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = False

LANGUAGE_CODE = "de"
USE_THOUSAND_SEPARATOR = True
TIME_ZONE = "Europe/Berlin"
USE_TZ = True
STATIC_URL = "/assets/"
STATIC_ROOT = FOLDER / "assets"

if IS_MOUNTED:
    INSTALLED_APPS += ["jobs_admin", "dashboard", "django_htmx"]
    REDRIVE = {
        "REDIS_URL": os.environ.get("FOREIGN_STORE", "redis://127.0.0.1:1/0"),
        "SOURCES": os.environ.get("FOREIGN_SOURCES", ""),
        "PAYLOAD_KEYS": ["7CgFb0yB7n6gkqdrvNvjLfPqsNYLoSp2FGHC7G0GpMM="],
        "URL": "https://house.example",
        "READ_ONLY": os.environ.get("FOREIGN_READ_ONLY", "0"),
        "TEST_BACKENDS": ["memory"],
    }
