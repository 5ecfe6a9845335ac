"""Checks of `zinc check`, one module for each section.

A section looks at one part of the machine and returns findings. What it reads of the system is
under a root folder, "/" unless a test plants faults elsewhere.
"""
