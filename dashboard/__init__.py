from pathlib import Path

_INSTALLED = Path(__file__).resolve().parent / "templates"
TEMPLATES = (
    _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "templates"
)  # in a checkout, beside the packages
