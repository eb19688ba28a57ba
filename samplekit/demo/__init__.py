"""The tour behind `samplekit demo`: four targets, one table, figures, stored runs and a report."""

from samplekit.demo.figures import contours as contours
from samplekit.demo.targets import NetworkEnergy as NetworkEnergy
from samplekit.demo.tour import run_demo as run_demo
