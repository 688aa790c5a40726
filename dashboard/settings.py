"""Django's settings. Everything that differs between installations comes from the environment (docs/operations.md)."""

from __future__ import annotations

from pathlib import Path

from dashboard import TEMPLATES as TEMPLATE_FOLDER
from dashboard.setup import environment as env
from jobs_admin.installation import COMMAND, IS_CHECKOUT, ROOT

BASE_DIR = ROOT
DATA_DIR = env.data_folder()

DEBUG = False
SECRET_KEY = env.get("SECRET_KEY")
if not SECRET_KEY:
    raise env.Misconfigured(f"SECRET_KEY is not set. Run `{COMMAND} up`, which makes one, or set it.")
ALLOWED_HOSTS = env.get_list("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]")
CSRF_TRUSTED_ORIGINS = env.get_list("CSRF_TRUSTED_ORIGINS")

REDRIVE = env.redrive()  # `jobs_admin.config` is its only reader

INSTALLED_APPS = [
    "jobs_admin",
    "dashboard",
    "django.contrib.admin.apps.SimpleAdminConfig",  # `dashboard.routes.admin` registers the records
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "axes",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",  # files are compressed once, by collectstatic
    "dashboard.web.middleware.compression.CompressionMiddleware",  # pages, padded at random so that their length tells nothing (BREACH)
    "dashboard.web.middleware.csp.PolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "dashboard.web.middleware.identity.IdentityMiddleware",
    "dashboard.web.middleware.time_zone.TimeZoneMiddleware",
    "dashboard.web.middleware.entrance.EntranceMiddleware",
    "dashboard.web.middleware.read_only.ReadOnlyMiddleware",  # after those that say who asks
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
    "dashboard.web.limits.LimitMiddleware",
    "dashboard.web.middleware.refusals.RefusalMiddleware",
]

ROOT_URLCONF = "dashboard.urls"
WSGI_APPLICATION = "dashboard.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [TEMPLATE_FOLDER / "project"],  # of Django's admin; pages have their own engine
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

DATABASES = {"default": env.database(env.get("DATABASE_URL", f"sqlite:///{DATA_DIR / 'redrive.sqlite3'}"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_HANDLER = "dashboard.web.login_limits.Handler"
AXES_CLIENT_IP_CALLABLE = "dashboard.web.login_limits.client_address"
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False
AXES_LOCKOUT_CALLABLE = "dashboard.web.views.locked"
CSRF_FAILURE_VIEW = "dashboard.web.views.forgery"
LOGIN_URL = "redrive:login"
LOGIN_REDIRECT_URL = "redrive:overview"
LOGOUT_REDIRECT_URL = "redrive:login"

# Sessions live in signed cookies' place, the database, so that a password change ends them.
SESSION_COOKIE_AGE = 24 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
_https = REDRIVE["URL"].startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SECURE_HSTS_SECONDS = 365 * 86400 if _https else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _https else None
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"

globals().update(env.mail(env.get("EMAIL_URL")))
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = env.get("EMAIL_FROM", "redrive@localhost")

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
USE_I18N = False

_folder = env.get("REDRIVE_URL_PREFIX").strip("/")
_prefix = f"/{_folder}/" if _folder else "/"
FORCE_SCRIPT_NAME = _prefix.rstrip("/") or None
STATIC_URL = f"{_prefix}static/"
STATIC_ROOT = Path(env.get("REDRIVE_STATIC") or DATA_DIR / "static")  # an image has collected them elsewhere
STATICFILES_DIRS = [BASE_DIR / "static"] if IS_CHECKOUT else []  # installed: dashboard/static
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "dashboard.web.static_files.Storage"},
}

# Pages name files by their hash: the others would only be compressed for nothing.
WHITENOISE_KEEP_ONLY_HASHED_FILES = True

# A pasted payload is refused before it is parsed.
DATA_UPLOAD_MAX_MEMORY_SIZE = 10 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 11_000

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {
            "()": "dashboard.web.log_lines.Formatter",
            "fmt": "{asctime} {levelname} {name}: {message}",
            "style": "{",
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"jobs_admin": {"level": "INFO"}, "dashboard": {"level": "INFO"}, "axes": {"level": "ERROR"}},
}
