import pytest

from core.train.windows import Position, count_steps, next_window


def windows(num_micro_batches, accumulation, steps):
    position, found = Position(), []
    for _ in range(steps):
        window = next_window(position, num_micro_batches, accumulation)
        found.append((window.epoch, list(window.micro_batches)))
        position = window.after
    return found


def test_ten_rows_accumulated_by_four_are_three_steps_an_epoch_with_a_short_last_window():
    steps = count_steps(lambda epoch: 10, accumulation=4, num_train_epochs=2, max_steps=-1)
    assert steps == 6
    one = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert windows(lambda epoch: 10, 4, steps) == [(0, w) for w in one] + [(1, w) for w in one]


def test_accumulation_beyond_the_epoch_still_trains_every_row():
    assert count_steps(lambda epoch: 10, accumulation=16, num_train_epochs=2, max_steps=-1) == 2
    assert windows(lambda epoch: 10, 16, 2) == [(0, list(range(10))), (1, list(range(10)))]


def test_epochs_of_unequal_length_are_counted_each():
    packs = [5, 7, 6].__getitem__
    assert count_steps(packs, accumulation=3, num_train_epochs=3, max_steps=-1) == 2 + 3 + 2
    assert windows(packs, 3, 7)[-3:] == [(1, [6]), (2, [0, 1, 2]), (2, [3, 4, 5])]


@pytest.mark.parametrize(("epochs", "steps"), [(0.5, 5), (0.51, 6), (1.0, 10), (1.1, 11), (2.3, 23), (0.01, 1)])
def test_part_of_an_epoch_is_rounded_up_to_whole_steps(epochs, steps):
    assert count_steps(lambda epoch: 10, accumulation=1, num_train_epochs=epochs, max_steps=-1) == steps


def test_max_steps_rules_over_epochs_in_both_directions():
    assert count_steps(lambda epoch: 10, accumulation=1, num_train_epochs=1, max_steps=3) == 3
    assert count_steps(lambda epoch: 10, accumulation=1, num_train_epochs=1, max_steps=25) == 25


def test_epochs_done_counts_parts():
    window = next_window(Position(epoch=1, micro_batch=4), lambda epoch: 8, 2)
    assert window.epochs_done == 1.75


def test_a_position_beyond_a_shorter_epoch_starts_the_next_one():
    window = next_window(Position(epoch=0, micro_batch=7), lambda epoch: 4, 3)
    assert (window.epoch, list(window.micro_batches)) == (1, [0, 1, 2])
