# Installs the tree of `cmake --install build --prefix P`, which `cpack` in build/ packs as eps_*.deb, and the module for
# several hosts as eps-mpi_*.deb. No file contains the prefix, so the tree can be moved.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME eps)
target_link_options(eps PRIVATE -Wl,--as-needed)
target_link_options(epsd PRIVATE -Wl,--as-needed)
target_link_options(eps-worker PRIVATE -Wl,--as-needed)

set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON) # what is packaged must be built; tests and benchmarks need not be

install(TARGETS eps epsd eps-worker RUNTIME)
install(TARGETS libeps LIBRARY)
if(TARGET eps-cuda)
  install(TARGETS eps-cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/eps OPTIONAL) # where it was built, as it takes long
endif()
if(TARGET eps-mpi)
  install(TARGETS eps-mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/eps COMPONENT mpi)
endif()
install(FILES client/eps.h client/eps_data.h client/eps_options.h client/eps_plan.h client/eps_texts.h TYPE INCLUDE)
file(RELATIVE_PATH PREFIX_FROM_PKGCONFIG ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(client/eps.pc.in eps.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/eps.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES tools/man/eps.1 tools/man/epsd.1 tools/man/eps-worker.1 ${MANUAL_PAGES} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES tools/completion/eps.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME eps)
install(FILES tools/completion/_eps DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES tools/completion/eps.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
# systemd looks for its files in lib, on every architecture.
install(FILES tools/systemd/epsd.service tools/systemd/eps-worker@.service DESTINATION lib/systemd/system)
install(FILES tools/systemd/eps.sysusers DESTINATION lib/sysusers.d RENAME eps.conf)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
file(WRITE ${CMAKE_BINARY_DIR}/debian/copyright
     "No licence has been chosen for eps yet: that is its owner's to do. Until then all rights are reserved.\n")
install(FILES ${CMAKE_BINARY_DIR}/debian/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The pages that README.md links, and those that these link.
foreach(folder client client/python proto proto/plan tests tools/bench tools/bench/results device/cuda eps eps/hosts)
  install(FILES ${folder}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
install(FILES tools/project/CHANGES.md tools/project/CONTRIBUTING.md tools/project/SECURITY.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/project)
install(FILES tests/gpu/RECORD.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/tests/gpu)
install(FILES tools/run.svg DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools)
install(FILES tools/bench/front.svg tools/bench/adama.svg tools/bench/draws.svg DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/bench)
install(FILES client/example_train.c client/example_widths.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)

set(EPS_MAINTAINER "eps developers <eps@example.org>" CACHE STRING "who answers for the Debian package")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME eps)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${EPS_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains neural networks larger than the memory of their device")
set(CPACK_COMPONENT_EPS_DESCRIPTION
    "A daemon holds weights and optimizer state in host memory; workers own a
device each, pull one layer at a time, run every microbatch through it and
stream the gradients back. Training stays inside the device memory that is
named, and is exact. This package holds the eps command, the daemon epsd,
eps-worker, and libeps with its headers.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL eps)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_EPS_PACKAGE_NAME eps)
set(CPACK_DEBIAN_EPS_PACKAGE_SUGGESTS "bash-completion")
set(CPACK_DEBIAN_EPS_PACKAGE_RECOMMENDS "gnuplot-nox | gnuplot") # draws the picture at a run's end
if(TARGET eps-cuda) # no more than that: all else runs without
  string(APPEND CPACK_DEBIAN_EPS_PACKAGE_RECOMMENDS ", libcublas-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR}")
endif()
if(TARGET eps-mpi) # a package of its own, so that eps does not depend on Open MPI
  list(APPEND CPACK_COMPONENTS_ALL mpi)
  string(APPEND CPACK_DEBIAN_EPS_PACKAGE_SUGGESTS ", eps-mpi")
  set(CPACK_COMPONENT_MPI_DESCRIPTION "This package holds the module by which epsd --mpi reaches other hosts.")
  set(CPACK_DEBIAN_MPI_PACKAGE_NAME eps-mpi)
  set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "eps (= ${PROJECT_VERSION}), openmpi-bin")
  install(FILES ${CMAKE_BINARY_DIR}/debian/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/eps-mpi COMPONENT mpi)
endif()
file(WRITE ${CMAKE_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
file(WRITE ${CMAKE_BINARY_DIR}/debian/shlibs "libeps ${PROJECT_VERSION_MAJOR} eps (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_EPS_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/debian/triggers ${CMAKE_BINARY_DIR}/debian/shlibs)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/tools/package.cmake)
include(CPack)
