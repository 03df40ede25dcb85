"""How XLA compiles programs that are small and run a few times: quickly rather than well."""

# LLVM's passes and the fusion emitters would take three quarters of the time of most tests.
QUICKLY = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)
