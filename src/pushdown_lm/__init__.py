"""Transformer language models with Pushdown Layers.

>>> from pushdown_lm import PushdownForCausalLM
>>> model = PushdownForCausalLM.from_pretrained_lm("gpt2-medium", pushdown_layers=range(12, 24))
"""

from pushdown_lm.configuration import PushdownConfig
from pushdown_lm.errors import PushdownError, TreeError
from pushdown_lm.modeling import PushdownCache, PushdownForCausalLM, PushdownOutput
from pushdown_lm.trees import Tree, parse_tree, read_trees

__version__ = "0.1.0"

__all__ = [
    "PushdownCache",
    "PushdownConfig",
    "PushdownError",
    "PushdownForCausalLM",
    "PushdownOutput",
    "Tree",
    "TreeError",
    "parse_tree",
    "read_trees",
]
