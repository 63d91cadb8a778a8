"""Support bundles: what a process may tell somebody who helps, and the archive it goes into.

Everything here lists what may leave; what is not listed stays. Text that others wrote
(errors, details, reasons) never leaves as it is, see `known_words`.
"""
