"""The attachment head: its softmax, its variants, and the authors' form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.model.head import AttachmentHead
from pushdown_lm.model.sinusoids import sinusoids
from pushdown_lm.trees import Tree
from pushdown_lm.trees.oracle import Candidates, attachments_from_tree, candidates, parse_state
from tests.strategies import binary_trees

WIDTH = 6


def prepare(parses: list[Tree]) -> tuple[torch.Tensor, Candidates]:
    sentences = [attachments_from_tree(parse) for parse in parses]
    length = max(map(len, sentences))
    batch = torch.tensor([[*row, *range(len(row), length)] for row in sentences])
    position = torch.arange(length)
    lengths = torch.tensor([len(row) for row in sentences])[:, None]
    state = parse_state(batch)
    words = (position > 0) & (position < lengths - 1)
    roots = (position == 0).expand_as(batch)
    features = torch.stack([state.tape.clamp(max=3), state.distance.clamp(max=3) + 4])
    return features, candidates(batch, state, roots, words)


def make_head(variant: str) -> AttachmentHead:
    torch.manual_seed(0)
    head = AttachmentHead(WIDTH, WIDTH, 4, 4, variant=variant).double()  # type: ignore[arg-type]
    if variant != "bilinear":
        torch.nn.init.normal_(head.tape_embedding)
    return head


@given(st.lists(binary_trees(min_words=2, max_words=7), min_size=1, max_size=3))
def test_legal_softmax_is_the_all_positions_softmax_renormalised(parses: list[Tree]) -> None:
    features, options = prepare(parses)
    size = options.index.shape[:2]
    head = make_head("mlp")
    hidden, following = torch.randn(2, *size, WIDTH, dtype=torch.float64)
    keys = head.keys(hidden)
    scores = head(hidden, following, keys, options.index, options.legal, features)
    everywhere = head.score_all_positions(hidden, following, keys, features)
    shift = size[1]
    for row, decision in options.decided.nonzero().tolist():
        legal = options.index[row, decision][options.legal[row, decision]].clone()
        legal[0] = shift
        probabilities = everywhere[row, decision].softmax(-1)[legal]
        expected = probabilities / probabilities.sum()
        got = scores[row, decision].softmax(-1)[options.legal[row, decision]]
        torch.testing.assert_close(got, expected)
        assert (everywhere[row, decision, decision + 1 : shift] == -torch.inf).all()
        assert probabilities.sum() <= 1  # what leaks to illegal positions is lost there


@pytest.mark.parametrize("sees_tape", [True, False])
def test_appendix_variant_is_what_the_paper_prints(sees_tape: bool) -> None:
    """Against the MLP over [key ; depth] of every candidate, one by one, with its gradients."""
    features, options = prepare([Tree(tuple("abcd"), ((0, 2), (2, 4), (0, 4)))] * 2)
    size = options.index.shape[:2]
    torch.manual_seed(0)
    sizes = (4, 4) if sees_tape else (0, 0)
    head = AttachmentHead(WIDTH, 5, *sizes, variant="appendix").double()
    if head.tape_embedding is not None:
        torch.nn.init.normal_(head.tape_embedding)
    hidden = torch.randn(*size, WIDTH, dtype=torch.float64)
    following = torch.randn(*size, 5, dtype=torch.float64)
    scores = head(hidden, following, head.keys(hidden), options.index, options.legal, features)

    expected = torch.full_like(scores, -torch.inf)
    for row, decision, slot in options.legal.nonzero().tolist():
        before = head.query_projection(hidden[row, decision])
        pair = torch.cat([before, following[row, decision]])
        query = head.query(pair)
        if slot == 0:
            key = head.shift_key(pair)
        else:
            position = options.index[row, decision, slot]
            key = head.key(hidden[row, position])
            if head.tape_embedding is not None:
                depth = head.tape_embedding[features[:, row, decision, position].long()].sum(0)
                key = torch.cat([key, depth])
            key = head.compose(key)
        expected[row, decision, slot] = query @ key * WIDTH**-0.5
    torch.testing.assert_close(scores, expected)
    check_gradients(head, scores, expected, options.legal)


def test_published_variant_is_the_authors_form() -> None:
    """Against the formulas, candidate by candidate, with gradients."""
    features, options = prepare([Tree(tuple("abcd"), ((0, 2), (2, 4), (0, 4)))] * 2)
    features = features[:1]
    size = options.index.shape[:2]
    torch.manual_seed(0)
    head = AttachmentHead(WIDTH, WIDTH, 4, variant="published", tape_width=3).double()
    assert head.tape_embedding is not None
    torch.nn.init.normal_(head.tape_embedding)
    hidden, following = torch.randn(2, *size, WIDTH, dtype=torch.float64)
    distance = torch.arange(1, size[1] + 1)[:, None] - options.index
    keys = head.keys(hidden)
    scores = head(hidden, following, keys, options.index, options.legal, features, distance)

    expected = torch.full_like(scores, -torch.inf)
    for row, decision, slot in options.legal.nonzero().tolist():
        token = following[row, decision]
        query = head.query(torch.cat([head.query_projection(hidden[row, decision]), token]))
        if slot == 0:
            position, key = decision + 1, head.shift_key(torch.cat([query, token]))
        else:
            position = int(options.index[row, decision, slot])
            depth = head.tape_embedding[features[0, row, decision, position].long()]
            key = head.compose(torch.cat([head.key(hidden[row, position]), depth]))
        relative = sinusoids(torch.tensor(position - (decision + 1)), WIDTH, torch.float64)
        expected[row, decision, slot] = query @ key + query @ head.position(relative)
    torch.testing.assert_close(scores, expected)
    check_gradients(head, scores, expected, options.legal)


def check_gradients(
    head: AttachmentHead, scores: torch.Tensor, expected: torch.Tensor, legal: torch.Tensor
) -> None:
    gradients = []
    for result in (scores, expected):
        head.zero_grad()
        result.masked_fill(~legal, 0.0).square().sum().backward(retain_graph=True)
        gradients.append({name: p.grad.clone() for name, p in head.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1])


def test_bilinear_variant_is_equation_5() -> None:
    features, options = prepare([Tree(tuple("abcd"), ((0, 2), (2, 4), (0, 4)))])
    head = make_head("bilinear")
    hidden, following = torch.randn(2, 1, 6, WIDTH, dtype=torch.float64)
    scores = head(hidden, following, head.key(hidden), options.index, options.legal, features)
    query = head.query(torch.cat([hidden, following], -1))[0]
    decision = 3  # "d" may shift, or attach to c (3) or to b (2), the end of (a b)
    bilinear = [query[decision], hidden[0, 3], hidden[0, 2]]
    expected = torch.stack([query[decision] @ head.key(vector) for vector in bilinear])
    torch.testing.assert_close(scores[0, decision, :3], expected * WIDTH**-0.5)


@pytest.mark.parametrize("variant", ["mlp", "bilinear"])
def test_gradients_reach_every_parameter(variant: str) -> None:
    features, options = prepare([Tree(tuple("abcd"), ((0, 2), (2, 4), (0, 4)))])
    head = make_head(variant)
    hidden, following = torch.randn(2, 1, 6, WIDTH, dtype=torch.float64)
    scores = head(hidden, following, head.key(hidden), options.index, options.legal, features)
    loss = torch.nn.functional.cross_entropy(
        scores[options.decided], options.target[options.decided]
    )
    loss.backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
        assert parameter.grad.isfinite().all(), name


def test_one_decision_at_a_time() -> None:
    features, options = prepare([Tree(tuple("abcd"), ((0, 2), (2, 4), (0, 4)))])
    head = make_head("mlp")
    hidden, following = torch.randn(2, 1, 6, WIDTH, dtype=torch.float64)
    keys = head.key(hidden)
    whole = head(hidden, following, keys, options.index, options.legal, features)
    for decision in range(4):
        now = slice(decision, decision + 1)
        part = head(
            hidden[:, now],
            following[:, now],
            keys[:, : decision + 1],
            options.index[:, now],
            options.legal[:, now],
            features[:, :, now, : decision + 1],
        )
        torch.testing.assert_close(part, whole[:, now])
