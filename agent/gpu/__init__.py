"""The node's GPUs: NVML read on its own threads, concluded into the inventory, and events."""
