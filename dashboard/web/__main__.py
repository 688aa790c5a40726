"""`python -m dashboard.web`: the web server."""

import sys

from dashboard.web.server import main

main(*sys.argv[1:])
