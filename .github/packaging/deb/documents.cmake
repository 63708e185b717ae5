# Adds what Debian asks of each package: its copyright, a changelog, and compressed man pages. The package of the headers also
# gets the pages and the examples. cpack runs this in the folders of the packages before it closes them. SOURCE_DATE_EPOCH sets the
# date of the changelog.
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
  # The pages and the examples lie as in the checkout, beside links to the headers, so that the links of the pages work.
  if(component STREQUAL "dev")
    file(GLOB_RECURSE pages RELATIVE ${CPACK_TESSERA_SOURCE} ${CPACK_TESSERA_SOURCE}/include/tessera/*.md)
    file(GLOB_RECURSE examples RELATIVE ${CPACK_TESSERA_SOURCE} ${CPACK_TESSERA_SOURCE}/examples/*)
    list(FILTER examples EXCLUDE REGEX "^examples/torch_cuda/(build/|.*[.](egg-info/|so$))|/__pycache__/")  # what pip leaves
    foreach(file IN LISTS pages examples ITEMS README.md)
      configure_file(${CPACK_TESSERA_SOURCE}/${file} ${documents}/${file} COPYONLY
                     FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    endforeach()
    file(GLOB_RECURSE headers RELATIVE ${root} ${root}/include/*.hpp)
    foreach(header IN LISTS headers)
      cmake_path(GET header PARENT_PATH folder)
      file(MAKE_DIRECTORY ${documents}/${folder})
      file(RELATIVE_PATH target ${documents}/${folder} ${root}/${header})
      file(CREATE_LINK ${target} ${documents}/${header} SYMBOLIC)
    endforeach()
  endif()
  file(GLOB pages ${root}/share/man/man1/*.1)
  execute_process(COMMAND gzip -9 -n ${documents}/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
