"""The slots of an engine, as a table."""

from prefilled_engines import THIS, prefilled

from labkit.learn.lesson_06.slots import slots_table


def test_the_device_and_the_host_say_the_same_of_each_slot():
    engine = prefilled(THIS, max_batch_size=4)
    for _ in range(3):
        engine.step()
    table = slots_table(engine)
    assert sorted(table["request"]) == ["", "0", "1", "2", "none: for padding"]
    running = table[table["request"].isin(["0", "1", "2"])]
    assert (
        running["context_lens"].astype(str) + ", " + running["last_token_ids"].astype(str)
    ).tolist() == running["host: tokens, last token"].tolist()
    assert table["context_lens"].iloc[-1] == -1
