"""Triton and Gluon: a driver for Triton's runtime.

Rests on the driver.
"""
