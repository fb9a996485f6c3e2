"""The workbench: configurations, runs, measures, sweeps, the paper's tables and figures, and reports."""

from __future__ import annotations

from carm.lab.config import Config
from carm.lab.run import Run, run

__all__ = ["Config", "Run", "run"]
