# Included by llama.cpp's own CMakeLists.txt (CMAKE_PROJECT_llama.cpp_INCLUDE).
#
# Four fifths of the time of its build go into code that does no arithmetic: servers,
# parsers, JSON, and code for images, which no program of ours runs. That is optimised
# less; libggml and libllama, which compute, are compiled as ever. Of GCC 12, in seconds
# of a core: clip.cpp 25.0 (-O3), 9.9 (-O1), 5.4 (-O0); server-task.cpp 14.0, 8.4, 6.7.

function(compile_quickly)
    foreach(target IN ITEMS
            llama-common server-context llama-server-impl llama-cli-impl
            llama-completion-impl llama-bench-impl llama-batched-bench-impl
            llama-perplexity-impl llama-fit-params-impl llama-quantize-impl
            cpp-httplib)
        if(TARGET ${target})
            target_compile_options(${target} PRIVATE -O1)
        endif()
    endforeach()
    if(TARGET mtmd)
        # Code for images and sound: several files at once, and as they stand.
        target_compile_options(mtmd PRIVATE -O0)
        set_target_properties(mtmd PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
        # These refuse to be compiled with what is internal to the others.
        set_source_files_properties(
            ${CMAKE_SOURCE_DIR}/tools/mtmd/mtmd-helper.cpp
            ${CMAKE_SOURCE_DIR}/tools/mtmd/mtmd-helper-gen.cpp
            TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
endfunction()

# Targets are known at the end of the file that includes this one.
cmake_language(DEFER CALL compile_quickly)
