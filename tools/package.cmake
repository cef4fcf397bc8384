# Run by cpack on the trees of the packages before it packs them: adds what Debian's policy requires beyond an installed
# tree.
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(GLOB folders ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/usr/share/doc/*)
foreach(folder ${folders})
  get_filename_component(name ${folder} NAME)
  file(WRITE ${folder}/changelog "${name} (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
endforeach()
file(GLOB pages ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/usr/share/man/man1/*.1)
list(TRANSFORM folders APPEND /changelog)
execute_process(COMMAND gzip -9nf ${pages} ${folders} COMMAND_ERROR_IS_FATAL ANY)
