"""What the allocators hold and have done, for others: JSON, Prometheus, a live view.

One module each, none of which `bigmem` imports by itself.
"""
