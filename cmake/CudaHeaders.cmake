# cuda_headers: an interface target with the directory of cuda.h. Nothing links libcuda; programs load
# it at run time. The CUDA toolkit's headers are taken where there is one, else those of the PyPI
# package nvidia-cuda-runtime in the project's virtual environment (build/venv).
file(GLOB _venv_cuda "${PROJECT_SOURCE_DIR}/build/venv/lib/python3*/site-packages/nvidia/*/include")
find_path(CUDA_HEADER_DIR cuda.h
          HINTS ENV CUDA_HOME ENV CUDA_PATH ${_venv_cuda}
          PATHS /usr/local/cuda /usr/lib/cuda
          PATH_SUFFIXES include targets/x86_64-linux/include)
if(NOT CUDA_HEADER_DIR)
  message(FATAL_ERROR "cuda.h not found: install the CUDA toolkit, or run ci/setup, which takes "
                      "the headers from PyPI, or set -DCUDA_HEADER_DIR=")
endif()
add_library(cuda_headers INTERFACE)
target_include_directories(cuda_headers SYSTEM INTERFACE "${CUDA_HEADER_DIR}")
