"""The command line, `samplekit`: sample, resume, launch, diagnose, report, info, fit, demo.

Commands import what they need when they are called, so that `samplekit --help` answers at once.
"""

from samplekit.cli.app import app as app
from samplekit.cli.app import main as main
