"""Has the numbers of the codes that the task draws: its FP4 numbers are at most 1.5, and no scale is below 1."""
# kind: parts of the work
# caught: with all FP4 numbers and scales: group \d: \d+ of \d+ elements differ

honest_kernel = custom_kernel


def half_units(code):
    return (code & 3) - (code >> 3) * (code & 3) * 2
