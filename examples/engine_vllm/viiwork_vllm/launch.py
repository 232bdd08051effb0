"""The command line of vLLM, and what is looked at before it is started."""

from __future__ import annotations

import shutil

from viiwork_core import Launch, Spec

from viiwork_vllm.arguments import check
from viiwork_vllm.model import check_folder, model_folder, refusal
from viiwork_vllm.options import VllmOptions


def launch(options: VllmOptions, spec: Spec) -> Launch:
    """Argv and environment of one backend. Pure. Raises ConfigError, naming the key."""
    check(spec)
    argv = [options.exe, "serve", str(model_folder(spec)), "--served-model-name", spec.model]
    argv += ["--host", spec.host, "--port", str(spec.port)]
    argv += ["--max-model-len", str(spec.context), "--max-num-seqs", str(spec.parallel)]
    argv += ["--tensor-parallel-size", str(max(1, len(spec.gpus))), "--dtype", options.dtype]
    argv += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--uvicorn-log-level", "warning"]
    if options.gpu_memory_utilization is not None:
        argv += ["--gpu-memory-utilization", f"{options.gpu_memory_utilization:g}"]
    return Launch((*argv, *spec.args), _environment(spec))


def _environment(spec: Spec) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",  # nothing is fetched
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",  # older versions log each prompt at INFO
        "VLLM_HOST_IP": spec.host,  # where its own processes meet
        # Longer than viiwork keeps a connection that nobody uses, so that no request goes into one that is closing.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
    }


def check_installation(options: VllmOptions, spec: Spec) -> None:
    """Raises ConfigError unless there are a vLLM and a model to start. Blocking."""
    if shutil.which(options.exe) is None:
        remedy = "install vLLM, or set it to the absolute path of the vllm command"
        raise refusal(spec, "vllm.exe", f"there is no executable {options.exe!r}", remedy)
    check_folder(spec)
