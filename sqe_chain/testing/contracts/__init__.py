"""What a store, a log, a codec or a kind of stage must do, as tests for pytest: run them on your own implementation.

Subclass a contract in a test file, and give its fixtures. pytest runs all of its rules:

    import pytest
    from sqe_chain.testing.contracts import StoreContract

    class TestFolderStore(StoreContract):
        @pytest.fixture
        def url(self, tmp_path):
            return f"folder://{tmp_path}"

The project's own stores, logs and codecs are tested by the same classes. Needs the extra `contracts`: pytest and hypothesis.
"""

import pytest

# Before the modules with rules are loaded: else pytest shows no values of an assertion that fails.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "store_claims",
            "store_states",
            "store_views",
            "store_races",
            "log_records",
            "log_limits",
            "log_transactions",
            "codecs",
            "stages",
        )
    )
)

from sqe_chain.testing.contracts.codecs import CodecContract  # noqa: E402 - after the registration
from sqe_chain.testing.contracts.log_limits import LimitRules  # noqa: E402 - the same
from sqe_chain.testing.contracts.log_records import RecordRules  # noqa: E402 - the same
from sqe_chain.testing.contracts.log_transactions import TransactionRules  # noqa: E402 - the same
from sqe_chain.testing.contracts.stages import StageContract  # noqa: E402 - the same
from sqe_chain.testing.contracts.store import StoreContract  # noqa: E402 - after the registration

__all__ = ["CodecContract", "LogContract", "StageContract", "StoreContract"]


class LogContract(RecordRules, LimitRules, TransactionRules):
    """Every rule of logs. A subclass gives the fixture `log`, and how topics are set; see `LogHarness`."""
