"""How XLA compiles programs that are small and run a few times: quickly rather than well."""

# LLVM's last passes and the fusion emitters would take most of the time of most tests. At level 0,
# without emitters, several steps in one call end in other last bits than one after the other.
QUICKLY = " ".join(
    [
        "--xla_backend_optimization_level=1",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)
