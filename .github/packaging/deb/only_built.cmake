# cpack reads this file before it makes packages. Without the tool, it makes the package of headers alone.
if(NOT EXISTS ${CPACK_TESSERA_TOOL})
  list(REMOVE_ITEM CPACK_COMPONENTS_ALL tool)
endif()
