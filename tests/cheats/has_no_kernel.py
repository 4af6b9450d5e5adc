"""Has no custom_kernel."""
# kind: parts of the work
# caught: no attribute 'custom_kernel'


def another_kernel(data):
    return [c for _, _, c in data[0]]
