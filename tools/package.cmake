# Run by cpack on the tree before it packs it: adds what Debian's policy requires beyond an installed tree.
file(GLOB pages ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/share/man/man1/*.1)
set(changelog ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/share/doc/eps/changelog)
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE ${changelog} "eps (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
execute_process(COMMAND gzip -9nf ${pages} ${changelog} COMMAND_ERROR_IS_FATAL ANY)
