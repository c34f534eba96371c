"""Prints what cuda.core tells of the devices."""

from cuda.core import Device

device = Device(0)
device.set_current()
capability = device.compute_capability
print(f"name {device.name}")
print(f"capability {capability.major}.{capability.minor}")
print(f"multiprocessors {device.properties.multiprocessor_count}")
print(f"vmm {device.properties.virtual_memory_management_supported}")
print(f"posix_fd {device.properties.handle_type_posix_file_descriptor_supported}")
print(f"pools {device.properties.memory_pools_supported}")
