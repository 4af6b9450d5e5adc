"""CuTe DSL: its compiled host code launches here.

Rests on the driver.
"""
