from __future__ import annotations

from hypothesis import settings

# A machine that does something else at the same time must not fail a test.
settings.register_profile("protocol", deadline=None, print_blob=True)
settings.load_profile("protocol")
