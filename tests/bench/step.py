"""The training command of the benchmark: load the array, add a constant, save it."""

import os

import numpy as np

array = np.load(os.environ["ROUNDLOG_PARAMS"])
array += np.float32(0.001)
np.save(os.environ["ROUNDLOG_WEIGHTS"], array)
