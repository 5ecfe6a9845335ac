"""For all tests: a property test may take its time on a machine that has other things to do."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("zinc", deadline=None)
settings.load_profile("zinc")
