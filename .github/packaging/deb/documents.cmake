# Adds what Debian asks of each package: its copyright, a changelog, and compressed man pages. cpack runs this in the folders of
# the packages before it closes them. SOURCE_DATE_EPOCH sets the date of the changelog.
string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX})
  string(TOUPPER ${component} upper)
  set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(documents ${root}/share/doc/${package})
  file(COPY ${CPACK_TESSERA_COPYRIGHT} DESTINATION ${documents}
       FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  file(WRITE ${documents}/changelog "tessera (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_PACKAGE_CONTACT}  ${now}
")
  file(GLOB pages ${root}/share/man/man1/*.1)
  execute_process(COMMAND gzip -9 -n ${documents}/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
