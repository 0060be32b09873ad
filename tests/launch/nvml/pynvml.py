"""A stand-in for nvidia-ml-py that reports the GPUs described by FAKE_NVML (JSON)."""

import json
import os
from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


class NVMLError_NotFound(NVMLError):
    pass


def scenario():
    return json.loads(os.environ["FAKE_NVML"])


def nvmlInit():
    if scenario()["fails"]:
        raise NVMLError(scenario()["fails"])


def nvmlShutdown():
    pass


def nvmlSystemGetDriverVersion():
    return scenario()["driver"]


def nvmlSystemGetCudaDriverVersion():
    major, minor = scenario()["cuda"].split(".")
    return 1000 * int(major) + 10 * int(minor)


def nvmlDeviceGetCount():
    return len(scenario()["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    if index >= nvmlDeviceGetCount():
        raise NVMLError("Invalid Argument")
    gpu = scenario()["gpus"][index]
    return {
        "index": index,
        "uuid": f"GPU-{index}a7c1e2d-0000-1111-2222-333344445555",
        "used": 3,
    } | gpu


def nvmlDeviceGetHandleByUUID(uuid):
    for index in range(nvmlDeviceGetCount()):
        device = nvmlDeviceGetHandleByIndex(index)
        for handle in (device, *map(dict, device.get("slices", ()))):
            if handle["uuid"] == uuid:
                return {"used": 0, "of": device} | handle
    raise NVMLError_NotFound


def nvmlDeviceGetName(handle):
    return handle["name"]


def nvmlDeviceGetUUID(handle):
    return handle["uuid"]


def nvmlDeviceGetMemoryInfo(handle):
    if not handle["mib"]:
        raise NVMLError("Not Supported")
    return SimpleNamespace(total=handle["mib"] << 20, used=handle.get("used", 0) << 20)


def nvmlDeviceGetCudaComputeCapability(handle):
    return handle["capability"]


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle):
    return handle["of"]


def nvmlDeviceGetMigMode(handle):
    if "slices" not in handle:
        raise NVMLError("Not Supported")
    return [1, 1]


def nvmlDeviceGetMigDeviceHandleByIndex(device, index):
    if index >= len(device["slices"]):
        raise NVMLError_NotFound
    return {"used": 0, "of": device} | device["slices"][index]


def nvmlDeviceGetIndex(handle):
    return handle["index"]
