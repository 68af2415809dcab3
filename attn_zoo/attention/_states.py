"""The check of a state, from the contract."""

from attn_zoo.contract import check_state as check_state
