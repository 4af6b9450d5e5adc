"""Ends with success before there is a kernel."""
# caught: SystemExit: 0

import sys

sys.exit(0)
