"""Tasks make the same bytes on every machine, and refuse bad options by name."""

from __future__ import annotations

import pytest

from attn_zoo import build_task, task_names
from attn_zoo.contract import SPLITS, MissingDataError

DIGESTS = [
    ("adding", {"train": 300, "valid": 40, "test": 60}, "train", "c8b65362bf7b07a6"),
    ("copying", {"train": 2000, "valid": 500}, "train", "33b985469296a53c"),
    ("digits", {}, "test", "2eae4b78878b117d"),
    ("flip_flop", {"train": 600, "valid": 60, "test": 90}, "test", "65c42d2128bc23e1"),
    ("fuzzy_recall", {"train": 600, "valid": 60, "test": 60}, "train", "529a616f2164257b"),
    ("haystack", {"train": 2000, "valid": 500}, "train", "f358cf16f06f5305"),
    ("induction", {"train": 2000, "valid": 500}, "train", "ba7a3098818ddde2"),
    ("listops", {}, "test", "195e14e301b38888"),
    ("memorise", {}, "train", "4b4c9f4ab2bcfcbc"),
    ("mosaic", {"train": 400, "valid": 50, "test": 50}, "train", "7ed1e5236e77118e"),
    ("mqar", {"train": 2000, "valid": 500}, "train", "9dd8b17db182ddeb"),
    ("needle", {"train": 600, "valid": 60, "test": 120}, "test", "7ad174ef4723da18"),
    (
        "pathfinder",
        {"side": 16, "contour": 6, "distractors": 2, "turn": 60, "train": 4, "valid": 4, "test": 20},
        "test",
        "007cc352e3c4ef40",
    ),
    (
        "pathfinder",
        {"contour": 9, "distractors": 5, "contrast": 0.4, "train": 4, "valid": 4, "test": 20},
        "test",
        "46a6eca8095dec0c",
    ),
    ("pathfinder", {"side": 128, "contour": 14, "distractors": 8, "train": 4, "valid": 4, "test": 20}, "test", "a7a219c30526f805"),
    ("selective", {"train": 2000, "valid": 500}, "train", "1ad83b8cc31474d8"),
    ("set_recall", {"train": 300, "valid": 40, "test": 60}, "train", "a17cefc9fe7a4792"),
    ("state_words", {"group": "s3", "train": 400, "valid": 50, "test": 50}, "train", "c1d074bceccf1f47"),
    ("tones", {"train": 300, "valid": 40, "test": 60}, "train", "1d7424a7de857c1f"),
]
"""Tasks, with options, one of their splits and how its digest begins."""

PUBLISHED = [
    ("cifar10", {}, [45_000, 5_000, 10_000], "a5be5defe4f90df1fdf7c8ab73bf0e224689bba87cab7620957ca6b0dc963e41"),
    (
        "masked_language",
        {"files": "novels"},
        [74_892, 7_392, 14_473],
        "22927fc0084f0c6f05b6c92450ab76714bf79e289daa8fbfb7b626280aa22876",
    ),
    ("mnist", {}, [55_000, 5_000, 10_000], "1831992207d70cfa9357b14d3515921961033f93ef5bf83dcfb57c9bc82eb15c"),
    ("mrpc", {}, [3_669, 407, 1_725], "0372dcd98935f0811e3440609e73f42a0e3367782ccf8f500f4bc5a2c1840db7"),
    ("pixels", {}, [45_000, 5_000, 10_000], "15837728115e4aad51a910c4271e4125c487c91bfdaf544b086ce79e1d1d55ec"),
    ("retrieval", {}, [20_000, 2_000, 4_000], "d44dbc256b80f5284658ebebe66591b3a5d1c10c8972eabc5f16e1f6af8eff09"),
    ("text", {}, [22_278, 2_500, 25_000], "f7be3e1477b890c57aed379e9bf285b3c3fe5f13be996221a411ab6fcb7c7722"),
]
"""Tasks on published data, with options, the sizes of their splits and the digest of the test."""

BAD = [
    ("adding", {"key": 5}, "of which there are 2\\^key, and must be from 3 to 32; got 64"),
    ("adding", {"marked": 64}, "adding.marked counts frames before the last and must be from 1 to 63; got 64"),
    ("causal_language", {"files": "poems"}, "causal_language.files must be wikitext, novels, python or folder"),
    ("causal_language", {"run": 1}, "causal_language.run must be 0 or from 2 to 16; got 1"),
    ("causal_language", {"rare": -1}, "causal_language.rare counts occurrences"),
    ("causal_language", {"length": 8}, "causal_language.length counts tokens"),
    ("causal_language", {"vocabulary": 1000}, "causal_language.vocabulary must be 0 .the default. if the tokens are bytes"),
    ("cifar10", {"patch": 3}, "must be 1, 2, 4 or 8, so that at least two patches lie along the 32 pixels"),
    ("cifar10", {"valid": 25001}, "must be from 1 to 25,000, half of the 50,000"),
    ("cifar10", {"augment": "flip"}, "cifar10.augment must be none, crop or crop_flip; got 'flip'"),
    ("cifar100", {"train": 45001}, "at most 45,000, the number of images left after validation"),
    ("copying", {"length": 32, "tokens": 16}, "copying.tokens .* must be from 1 to 15; got 16"),
    ("copying", {"order": "sideways"}, "copying.order must be forward or reversed; got 'sideways'"),
    ("copying", {"vocabulary": 1}, "counts symbols"),
    ("digits", {"patch": 3}, "patch must be 1, 2 or 4"),
    ("digits", {"data_seed": -1}, "data_seed must be from"),
    ("fashion_mnist", {"patch": 28}, "must be 2, 4, 7 or 14"),
    ("flip_flop", {"length": 7}, "length must be even, because a symbol follows each instruction; got 7"),
    ("flip_flop", {"length": 4}, "flip_flop.length counts tokens"),
    ("flip_flop", {"symbols": 1}, "flip_flop.symbols counts symbols"),
    ("flip_flop", {"sparse": 1.5}, "flip_flop.sparse is a share of the instructions and must be from 0 to 1; got 1.5"),
    ("fuzzy_recall", {"longest": 5}, "longest counts tokens of a key"),
    ("fuzzy_recall", {"length": 7}, "fuzzy_recall.length counts tokens"),
    ("fuzzy_recall", {"vocabulary": 15}, "must be even, because half of it are keys"),
    ("fuzzy_recall", {"vocabulary": 44}, "longest must be at most 10,000; got vocabulary=44 and longest=3"),
    ("fuzzy_recall", {"pairs": 9}, "must be from 1 to 8; got 9"),
    ("fuzzy_recall", {"pairs": 8, "length": 50}, "must be from 1 to 7; got 8"),
    ("haystack", {"distractors": 26}, "needles about other keys"),
    ("haystack", {"length": 40}, "haystack.length counts bytes"),
    ("haystack", {"shallowest": 0.6, "deepest": 0.5}, "shallowest must be at most deepest; got 0.6 and 0.5"),
    ("haystack", {"values": "words"}, "must be digits or letters"),
    ("image_arrays", {"patch": 5}, "image_arrays.patch must divide 32 x 32 pixels"),
    ("image_arrays", {"patch": 32}, "at least two patches"),
    ("image_arrays", {"channels": 2}, "1 .grey. or 3 .colour."),
    ("image_arrays", {"title": " "}, "must not be empty"),
    ("image_folder", {"patch": 15}, "must divide 224 x 224 pixels"),
    ("image_folder", {"crop": 0.0}, "crop must be above 0"),
    ("image_folder", {"valid": 0.6}, "valid must be above 0 and at most 0.5"),
    ("image_folder", {"classes": 1}, "classes must be at least 2"),
    ("image_folder", {"augment": "x"}, "image_folder.augment must be"),
    ("imdb", {"length": 4}, "imdb.length counts tokens"),
    ("induction", {"length": 3}, "induction.length"),
    ("induction", {"occurrences": 32}, "must be from 1 to 31; got 32"),
    ("induction", {"vocabulary": 2}, "counts symbols"),
    ("listops", {"length": 3}, "16 to 16,384"),
    ("listops", {"shortest": 1.5}, "share of length"),
    ("listops", {"max_depth": 0}, "must be from 1 to"),
    ("listops", {"max_arguments": 1}, "must be from 2 to"),
    ("listops", {"length": 64, "max_depth": 1, "max_arguments": 5}, "length must be at most 7"),
    ("listops", {"files": "theirs"}, "listops.files must be generated or lra; got 'theirs'"),
    ("listops", {"files": "lra"}, "listops.length must be at least 1999"),
    ("listops", {"files": "lra", "length": 2000, "train": 96001}, "got train=96001"),
    ("listops", {"files": "lra", "length": 2000, "test": 100}, "and test exactly"),
    ("masked_language", {"files": "books"}, "masked_language.files must be wikitext, novels, python or folder"),
    ("masked_language", {"files": "folder"}, "masked_language.path must name a folder if files=folder"),
    ("masked_language", {"path": "x"}, "masked_language.path must name a folder"),
    ("masked_language", {"share": 0.9}, "masked_language.share is a share of the tokens and must be from 0.01 to 0.5; got 0.9"),
    ("masked_language", {"draws": 0}, "masked_language.draws counts masked copies of a sequence and must be from 1 to 100; got 0"),
    ("masked_language", {"length": 8}, "masked_language.length counts tokens"),
    ("memorise", {"length": 9}, "length must be even, because a blank follows each key; got 9"),
    ("memorise", {"vocabulary": 7}, "must be even, because half of it are keys and half values; got 7"),
    ("memorise", {"vocabulary": 2}, "memorise.vocabulary counts keys and values"),
    ("mnist", {"patch": 5}, "must be 2, 4, 7 or 14"),
    ("mnist", {"train": 55001}, "at most 55,000, the number of images"),
    ("mnist", {"augment": "crop_flip"}, "digits must not be mirrored"),
    ("mnist", {"augment": "mixup"}, "must be none, crop or crop_flip; got 'mixup'"),
    ("mosaic", {"grid": 3}, "mosaic.grid counts cells per side and must be from 4 to 32; got 3"),
    ("mosaic", {"grid": 4, "marks": 6}, "at most 5 at grid=4, and must be from 1 to 5; got 6"),
    ("mosaic", {"marks": 9}, "must be from 1 to 8; got 9"),
    ("mosaic", {"kinds": 1}, "mosaic.kinds counts different digits and must be from 2 to 10; got 1"),
    ("mosaic", {"kinds": 3, "marks": 4}, "at most 3 at grid=6, and must be from 1 to 3; got 4"),
    ("mosaic", {"grid": 4, "marks": 7, "kinds": 2}, "at most 2 at grid=4, and must be from 1 to 2; got 7"),
    ("mosaic", {"data_seed": -1}, "mosaic.data_seed is a seed and must be from 0"),
    ("mqar", {"length": 65}, "length must be even"),
    ("mqar", {"length": 64, "pairs": 17}, "at most a quarter of length=64, and must be from 1 to 16; got 17"),
    ("mqar", {"pairs": 16, "vocabulary": 30}, "at least 32, because .*; got 30"),
    ("mqar", {"alpha": 9.0}, "alpha is the exponent"),
    ("mqar", {"fewest_pairs": 17}, "mqar.fewest_pairs counts pairs, at most pairs=16,"),
    ("mqar", {"most_pairs": 32}, "fewest_pairs must be from 1 to most_pairs=32; got 0"),
    ("mqar", {"fewest_pairs": 4, "most_pairs": 64}, "at least 128, because .*; got 64"),
    ("mqar", {"fillers": 0}, "fillers counts tokens"),
    ("mrpc", {"tokens": "bpe", "vocabulary": 100}, "mrpc.vocabulary must be 0 .the default. or from 259"),
    ("needle", {"length": 6}, "needle.length counts tokens"),
    ("needle", {"needles": 17}, "at most a quarter of length=64, and must be from 1 to 16; got 17"),
    ("needle", {"vocabulary": 6}, "at least 8, because .*; got 6"),
    ("needle", {"hay": 5}, "needle.hay counts tokens"),
    ("needle", {"longer": 3}, "needle.longer must be a power of two; got 3"),
    ("needle", {"causal": False}, "needle.longer must be 1 with causal=false.*; got 4"),
    ("pathfinder", {"side": 24}, "pathfinder.side must be 16, 32, 64, 128 or 256; got 24"),
    ("pathfinder", {"contour": 2}, "pathfinder.contour counts dashes of a long path and must be from 3 to 64; got 2"),
    ("pathfinder", {"distractors": -1}, "pathfinder.distractors counts short paths"),
    ("pathfinder", {"contrast": 0.0}, "pathfinder.contrast is a share"),
    ("pathfinder", {"turn": 42}, "pathfinder.turn must be a multiple of 5"),
    ("pathfinder", {"turn": 95}, "pathfinder.turn counts degrees"),
    ("pathfinder", {"train": 1}, "pathfinder.train counts images"),
    ("pathfinder", {"data_seed": -1}, "pathfinder.data_seed"),
    ("pathfinder", {"files": "theirs"}, "pathfinder.files must be generated or lra; got 'theirs'"),
    ("pathfinder", {"files": "lra", "side": 16}, "32, 64, 128 or 256, and contour must be 6, 9 or 14; got side=16, contour=9"),
    ("pathfinder", {"files": "lra", "contour": 7}, "got side=32, contour=7"),
    ("pixels", {"side": 64}, "pixels.side must be 8, 16 or 32"),
    ("qqp", {"vocabulary": 300}, "qqp.vocabulary must be 0 .the default. if the tokens are bytes"),
    ("retrieval", {"files": "acl"}, "retrieval.files must be newsgroups or aan"),
    ("retrieval", {"train": 0}, "retrieval.train must be at least 2"),
    ("retrieval", {"test": 1}, "retrieval.test must be at least 2"),
    ("selective", {"marked": 13, "modulus": 4}, "here 12"),
    ("selective", {"marked": 2}, "a majority only if they are equal"),
    ("selective", {"kind": "median"}, "must be sum or majority"),
    ("selective", {"unmarked": "none"}, "must be balanced or independent"),
    ("set_recall", {"key": 4}, "of which there are 2\\^key, and must be from 3 to 16; got 32"),
    ("set_recall", {"classes": 1}, "set_recall.classes counts classes"),
    ("set_recall", {"rare": 1}, "set_recall.rare counts frames"),
    ("sst2", {"tokens": "words"}, "sst2.tokens must be bytes or bpe; got 'words'"),
    ("state_words", {"group": "s4"}, "must be parity, s3 or s5; got 's4'"),
    ("state_words", {"swaps": True}, "Set swaps=false"),
    ("state_words", {"length": 1}, "state_words.length counts elements"),
    ("state_words", {"test_length": 20}, "at least as many as length=32, and must be from 32 to"),
    ("text", {"length": 8}, "text.length"),
    ("tones", {"low": 7}, "tones.tones counts double tones, at most low=7, and must be from 1 to 7; got 8"),
    ("tones", {"fewest": 9}, "tones.fewest counts double tones, at most tones=8, and must be from 1 to 8; got 9"),
    ("tones", {"noise": -0.5}, "tones.noise is a level"),
]
"""Tasks, with options that they refuse, and how."""


@pytest.mark.parametrize(("name", "options", "split", "digest"), DIGESTS)
def test_the_same_bytes_on_every_machine(name, options, split, digest):
    found = build_task(name, **options).examples(split).digest()
    assert found.startswith(digest), "the examples changed; raise the task's version, then this digest"


@pytest.mark.data
@pytest.mark.parametrize(("name", "options", "sizes", "digest"), PUBLISHED)
def test_published_data_have_their_known_content(name, options, sizes, digest):
    task = build_task(name, **options)
    try:
        found = task.examples("test").digest()
    except MissingDataError as missing:
        pytest.skip(str(missing).split(";")[0])
    assert found.startswith(digest), "the examples changed; raise the task's version, then this digest"
    assert [len(task.examples(split)) for split in SPLITS] == sizes


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", task_names())
def test_a_number_of_examples_that_is_none_is_refused(name, split):
    task = build_task(name)
    if hasattr(task.options, split):
        with pytest.raises(ValueError, match=rf"\b{split}\b"):
            build_task(name, **{split: 0 if task.generated else -1})


@pytest.mark.parametrize(("name", "options", "message"), BAD)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_task(name, **options)
