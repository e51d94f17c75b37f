"""Reads data for the Data tab in threads that nobody waits for, and keeps the last reports. Used by data_actions.py.

A page may be reloaded, closed or opened twice meanwhile: it asks again by what is read, and finds it here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.services.prepare_data import Progress
from app.views.data_report import progress_words
from core.data.report import DataRefused
from planner.errors import ConfigError, LongfitError

_MAX_READINGS = 8
Report = Mapping[str, Any]  # core/data/prepare.py's


@dataclass(slots=True)
class Reading:
    """One set of data: being read, or done with a report, a problem or (refused rows) both."""

    share: float | None = 0.0  # of the bytes; None where their number is unknown
    words: str = "starting"
    is_over: bool = False
    report: Report | None = None
    problem: LongfitError | None = None


class DataReader:
    """One set at a time: two would only slow each other down."""

    def __init__(self) -> None:
        self._readings: OrderedDict[str, Reading] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, asked: str) -> Reading | None:
        with self._lock:
            return self._readings.get(asked)

    def start(self, asked: str, read: Callable[[Progress], Report]) -> threading.Thread:
        """Begin to read, again when it was read before: files may have changed.

        Raises: ConfigError while a set is being read.
        """
        with self._lock:
            if any(not reading.is_over for reading in self._readings.values()):
                raise ConfigError("A set of data is being read already.", fix="Wait until it is done.")
            self._readings.pop(asked, None)
            reading = self._readings[asked] = Reading()
            while len(self._readings) > _MAX_READINGS:
                self._readings.popitem(last=False)
        # a daemon: a large set takes minutes, and the server must not wait for it when it is ended
        thread = threading.Thread(target=_fill, args=(reading, read), daemon=True)
        thread.start()
        return thread


def _fill(reading: Reading, read: Callable[[Progress], Report]) -> None:
    def tell(rows: int, file: str, share: float | None) -> None:
        reading.share, reading.words = share, progress_words(rows, file, None)

    try:
        reading.report = read(tell)
    except DataRefused as refused:
        reading.report = refused.report if "train" in refused.report else {"train": refused.report}
        reading.problem = refused
    except LongfitError as error:
        reading.problem = error
    finally:
        if reading.report is None and reading.problem is None:  # a fault of longfit: its traceback is in the terminal
            reading.problem = LongfitError("Reading ended without a report.", fix="See the terminal of longfit web.")
        reading.is_over = True
