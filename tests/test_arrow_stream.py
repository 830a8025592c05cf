import polars as pl

from llmprof.storage import arrow_stream


class Producer:
    """A stream of one batch a frame, of which the one at ``fails`` raises."""

    def __init__(self, *batches: pl.DataFrame) -> None:
        self.batches = batches

    def __arrow_c_stream__(self, requested_schema=None):
        return pl.concat(self.batches, rechunk=False).__arrow_c_stream__(requested_schema)


def frame(first: int, count: int) -> pl.DataFrame:
    numbers = range(first, first + count)
    return pl.DataFrame({"n": numbers, "text": [None if i % 3 == 0 else f"t{i}" for i in numbers]})


def test_batches_come_one_by_one_in_order():
    parts = [frame(0, 5), frame(5, 1), frame(6, 70_000)]
    found = list(arrow_stream.frames(Producer(*parts)))
    assert pl.concat(found).equals(pl.concat(parts))


def test_a_stream_without_rows_is_one_frame_with_its_columns():
    (found,) = arrow_stream.frames(Producer(frame(0, 0)))
    assert found.schema == frame(0, 0).schema
    assert found.height == 0


def test_what_is_not_taken_is_given_back():
    stream = arrow_stream.frames(Producer(frame(0, 3), frame(3, 3)))
    first = next(stream)
    stream.close()
    assert first["n"].to_list()[:3] == [0, 1, 2]
