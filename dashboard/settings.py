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

REDRIVE = env.redrive()  # read only by `jobs_admin.config`

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
    "whitenoise.middleware.WhiteNoiseMiddleware",  # collectstatic compresses the files once
    "dashboard.web.middleware.compression.CompressionMiddleware",  # pages, padded at random against BREACH
    "dashboard.web.middleware.csp.PolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "dashboard.web.middleware.identity.IdentityMiddleware",
    "dashboard.web.moments.TimeZoneMiddleware",
    "dashboard.web.middleware.entrance.EntranceMiddleware",
    "dashboard.web.middleware.read_only.ReadOnlyMiddleware",  # after the middleware that identifies the caller
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
    "dashboard.web.limits.LimitMiddleware",
    "dashboard.web.error_pages.RefusalMiddleware",
]

ROOT_URLCONF = "dashboard.urls"
WSGI_APPLICATION = "dashboard.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [TEMPLATE_FOLDER / "project"],  # templates of Django's admin; pages have their own engine
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

# Disabling a backend ends the sessions that were opened with it.
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    *([] if REDRIVE["OIDC_ONLY"] else ["dashboard.web.second_step.Passwords", "dashboard.web.second_step.BothSteps"]),
    *(["dashboard.web.sign_on.Backend"] if REDRIVE["OIDC_ISSUER"] else []),
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_HANDLER = "dashboard.web.login_limits.Handler"
AXES_CLIENT_IP_CALLABLE = "dashboard.web.addresses.client_address"
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False
AXES_LOCKOUT_CALLABLE = "dashboard.web.views.locked"
CSRF_FAILURE_VIEW = "dashboard.web.views.forgery"
LOGIN_URL = "redrive:login"
LOGIN_REDIRECT_URL = "redrive:overview"
LOGOUT_REDIRECT_URL = "redrive:login"

# Sessions are stored in the database, not in signed cookies, so that a password change ends them.
SESSION_COOKIE_AGE = 24 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
# Cookies ignore the port: desks of `up` on one machine would log each other out.
_desk = env.cookie_suffix(SECRET_KEY)
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = f"sessionid{_desk}", f"csrftoken{_desk}"
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
STATIC_ROOT = Path(env.get("REDRIVE_STATIC") or DATA_DIR / "static")  # an image has collected the files elsewhere
STATICFILES_DIRS = [BASE_DIR / "static"] if IS_CHECKOUT else []  # installed: dashboard/static
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "dashboard.web.static_files.Storage"},
}

# Pages refer to files by hash: the others would be compressed for nothing.
WHITENOISE_KEEP_ONLY_HASHED_FILES = True

# A larger payload is refused before it is parsed.
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
