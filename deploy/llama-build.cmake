# Leaves llama.cpp's `common` library out of the llama-cpp-python build: Draftwire uses the low-level API only, and
# without it the build takes half the time. The package forces the cache variable; a plain variable wins over it.
# Given as -C cmake.define.CMAKE_PROJECT_llama_cpp_INCLUDE=<absolute path of this file>.
set(LLAMA_BUILD_COMMON OFF)
