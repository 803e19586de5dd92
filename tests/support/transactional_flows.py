"""The flows of `tests.lab.transactional_kills`, as processes run them. CHAOS_PREFIX begins all names."""

from __future__ import annotations

import os

from tests.support.plain_readers import transactional_flow

_PREFIX = os.environ.get("CHAOS_PREFIX", "plain")
staged = transactional_flow(stages=True, name=f"{_PREFIX}-staged", before=f"{_PREFIX}.")
republisher = transactional_flow(stages=False, name=f"{_PREFIX}-republisher", before=f"{_PREFIX}.")
