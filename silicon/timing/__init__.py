"""Small kernels timed on an H200, and the timing model beside them.

kernels.py writes the PTX, points.py says how it is launched and timed, record.py measures, validate.py asks the model.
"""
